//! Requests on the agent's socket: any bytes. What is taken for one is one when it is written again.

#![no_main]

use gpuwho::control::Request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let written = serde_json::to_vec(&request).unwrap();
        assert_eq!(serde_json::from_slice::<Request>(&written).unwrap(), request);
    }
});
