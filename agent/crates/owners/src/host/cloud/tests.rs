use super::*;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread;

/// A metadata service that answers what a function makes of a request's head.
fn serve(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let reader = BufReader::new(stream.try_clone().unwrap());
            let head: Vec<String> =
                reader.lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            // A client that has gone away is no failure of the service.
            let _ = stream.write_all(&answer(&head.join("\n").to_lowercase()));
        }
    });
    at
}

fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn status(line: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n")
        .into_bytes()
}

fn known(region: &str, zone: &str, machine: &str) -> Facts {
    let text = |text: &str| Some(text.to_owned());
    Facts { region: text(region), zone: text(zone), machine: text(machine) }
}

/// A service that answers only a request with this header.
fn asked_with(header: &'static str, answer: Vec<u8>) -> SocketAddr {
    let refusal = status("403 Forbidden");
    serve(move |head| if head.contains(header) { answer.clone() } else { refusal.clone() })
}

/// IMDSv2: a token by PUT, without which nothing is said.
fn aws(head: &str) -> Vec<u8> {
    if head.starts_with("put /latest/api/token ") {
        let has_ttl = head.contains("x-aws-ec2-metadata-token-ttl-seconds: 60");
        return if has_ttl { ok("AQAEAJ==") } else { status("400 Bad Request") };
    }
    if !head.contains("x-aws-ec2-metadata-token: aqaeaj==") {
        return status("401 Unauthorized");
    }
    let document = r#"{"accountId":"1","availabilityZone":"eu-west-1b","instanceType":"p5.48xlarge",
        "region":"eu-west-1","pendingTime":"2026-01-01T00:00:00Z"}"#;
    ok(document)
}

#[test]
fn aws_is_asked_with_a_token() {
    let facts = Cloud::Aws.ask_at(serve(aws)).unwrap();
    assert_eq!(facts, known("eu-west-1", "eu-west-1b", "p5.48xlarge"));
}

#[test]
fn google_is_asked_with_its_flavor_and_answers_with_it() {
    let body = r#"{"zone":"projects/42/zones/us-central1-a",
        "machineType":"projects/42/machineTypes/a3-highgpu-8g"}"#;
    let answer = |flavor: &str| {
        let head = format!("HTTP/1.1 200 OK\r\n{flavor}transfer-encoding: chunked\r\n\r\n");
        let whole = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        asked_with("metadata-flavor: google", whole.into_bytes())
    };
    let facts = Cloud::Gcp.ask_at(answer("Metadata-Flavor: Google\r\n")).unwrap();
    assert_eq!(facts, known("us-central1", "us-central1-a", "a3-highgpu-8g"));
    let foreign = Cloud::Gcp.ask_at(answer(""));
    assert!(matches!(foreign, Err(CloudError::Foreign(Cloud::Gcp))), "{foreign:?}");
}

#[test]
fn azure_has_a_zone_only_where_the_region_has_zones() {
    let answer = |zone: &str| {
        let machine = "Standard_ND96isr_H100_v5";
        let body = format!(r#"{{"location":"eastus","zone":"{zone}","vmSize":"{machine}"}}"#);
        asked_with("metadata: true", ok(&body))
    };
    let facts = Cloud::Azure.ask_at(answer("1")).unwrap();
    assert_eq!(facts, known("eastus", "eastus-1", "Standard_ND96isr_H100_v5"));
    assert_eq!(Cloud::Azure.ask_at(answer("")).unwrap().zone, None);
}

#[test]
fn a_service_that_refuses_redirects_or_lies_gives_no_facts() {
    for line in ["404 Not Found", "401 Unauthorized", "301 Moved Permanently", "500 Oops"] {
        for cloud in Cloud::ALL {
            let refused = cloud.ask_at(serve(move |_| status(line)));
            assert!(matches!(refused, Err(CloudError::Status(_))), "{cloud:?} {line}: {refused:?}");
        }
    }
    let page = serve(|_| ok("<html>Log in to the network</html>"));
    let foreign = Cloud::Azure.ask_at(page);
    assert!(matches!(foreign, Err(CloudError::Foreign(_))), "{foreign:?}");
    let noise = serve(|_| vec![0; 100]);
    assert!(matches!(Cloud::Azure.ask_at(noise), Err(CloudError::Http(_))));
}

#[test]
fn an_answer_without_an_end_is_cut_off() {
    let endless = serve(|_| {
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n".to_vec();
        answer.resize(1 << 20, b' ');
        answer
    });
    let cut = Cloud::Azure.ask_at(endless);
    assert!(matches!(cut, Err(CloudError::Body)), "{cut:?}");
}

#[test]
fn a_service_that_is_silent_keeps_the_agent_for_two_seconds() {
    // Accepted by the kernel, answered by nobody.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Cloud::Aws.ask_at(listener.local_addr().unwrap());
    assert!(matches!(silent, Err(CloudError::TimedOut)), "{silent:?}");
}

#[test]
fn what_is_no_name_is_left_out() {
    let long = "x".repeat(MAX_NAME_LEN + 1);
    let body = format!(r#"{{"location":"east us\n","zone":null,"vmSize":"{long}"}}"#);
    assert_eq!(Cloud::Azure.ask_at(serve(move |_| ok(&body))).unwrap(), Facts::default());
}
