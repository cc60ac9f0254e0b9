//! What a webhook's answers mean.

use super::*;
use hyper::header::{HeaderMap, RETRY_AFTER};

const ENCODING: Encoding = Encoding { format: WEBHOOK, compression: Compression::None };

fn webhook() -> Webhook {
    Webhook { keys: None, failures: 0 }
}

fn answer(code: u16) -> Answer {
    let status = StatusCode::from_u16(code).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
    Answer { status, headers, body: Bytes::from_static(b"why"), trailers: HeaderMap::new() }
}

#[test]
fn what_may_work_later_is_tried_again_when_the_receiver_says() {
    for code in 100..600 {
        let verdict = webhook().verdict(ENCODING, &answer(code), SystemTime::now());
        let again = [408, 425, 429].contains(&code) || code >= 500;
        match verdict {
            Verdict::Accepted { .. } => assert!((200..300).contains(&code), "{code}"),
            Verdict::Retry { after, .. } => {
                assert!(again, "{code}");
                assert_eq!(after.map(|after| after.as_secs()), Some(7));
            }
            // Redirects among them: the body goes nowhere that is not configured.
            Verdict::Refused(_) => assert!(!again && !(200..300).contains(&code), "{code}"),
            Verdict::NotOurs => panic!("{code}"),
        }
    }
}

#[test]
fn a_batch_that_the_receiver_always_fails_at_does_not_stop_the_others() {
    let mut webhook = webhook();
    let verdicts: Vec<bool> = (0..12)
        .map(|_| webhook.verdict(ENCODING, &answer(500), SystemTime::now()))
        .map(|verdict| matches!(verdict, Verdict::Retry { .. }))
        .collect();
    let refused = verdicts.iter().position(|is_again| !is_again);
    assert_eq!(refused, Some(10));
    assert!(verdicts[11], "the next batch has its own attempts");
}
