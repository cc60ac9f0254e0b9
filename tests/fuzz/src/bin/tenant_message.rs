//! Messages between the agent and the process that reads tenants' files: any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| gpuwho_owners::tenant_files::fuzz::message(bytes));
