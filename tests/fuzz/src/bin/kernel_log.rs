//! The kernel log: any text as its records, one a line, and as what `syslog(2)` gives out, of which
//! each record is one of the kernel's with the text behind the kernel's own prefix.

#![no_main]

use gpuwho_collect::kmsg::fuzz::{as_records, log};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    log(text);
    let records = as_records(text);
    assert!(records.lines().count() <= text.split('\n').count());
    log(&records);
});
