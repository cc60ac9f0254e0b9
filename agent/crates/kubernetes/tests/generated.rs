//! The messages in `src` are what `proto` says. After a change there:
//!
//! ```sh
//! GPUWHO_WRITE=1 cargo test -p gpuwho-kubernetes --features generate
//! ```

use std::{env, fs};

#[test]
fn the_messages_are_what_their_protos_say() {
    let here = env!("CARGO_MANIFEST_DIR");
    for name in ["cri", "pod_resources"] {
        let set = protox::compile([format!("{name}.proto")], [format!("{here}/proto")]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        prost_build::Config::new()
            .btree_map(["."])
            .disable_comments(["."])
            .default_package_filename("unnamed")
            .out_dir(folder.path())
            .compile_fds(set)
            .unwrap();
        let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
        let now = format!(
            "// From proto/{name}.proto by tests/generated.rs: change that.\n\n{}",
            fs::read_to_string(file.path()).unwrap()
        );
        let path = format!("{here}/src/{name}.rs");
        if env::var_os("GPUWHO_WRITE").is_some() {
            fs::write(&path, &now).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap() == now, "{path} is not what would be written");
    }
}
