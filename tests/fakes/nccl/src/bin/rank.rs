//! A rank: does with a collective library what it reads on standard input, a line an order, and
//! answers each with a line.

fn main() -> std::process::ExitCode {
    match nccl::rank::serve(std::io::stdin().lock(), std::io::stdout().lock(), &[]) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
