//! Tests that cannot run here say what they would need, and are counted as skipped.

/// Prints `skipped: needs <what>` and returns from the test.
#[macro_export]
macro_rules! skip {
    ($($what:tt)*) => {{
        println!("skipped: needs {}", format_args!($($what)*));
        return;
    }};
}

/// The value, or `skipped: needs <error>`.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => $crate::skip!("{error}"),
        }
    };
}
