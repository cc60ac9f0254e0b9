//! A rank with the library linked into it, as some frameworks have it: it exports nothing, and what
//! it is shows in its table of symbols alone.

use nccl::abi;

fn main() -> std::process::ExitCode {
    let linked: [nccl::rank::Linked; 4] = [
        ("ncclGetUniqueId", abi::ncclGetUniqueId as *mut _),
        ("ncclCommInitRank", abi::ncclCommInitRank as *mut _),
        ("ncclAllReduce", abi::ncclAllReduce as *mut _),
        ("ncclCommDestroy", abi::ncclCommDestroy as *mut _),
    ];
    match nccl::rank::serve(std::io::stdin().lock(), std::io::stdout().lock(), &linked) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
