use super::*;
use std::fs::File;
use std::os::unix::fs::symlink;

/// The folder of a process that is made up: its own root, and mappings of real files.
fn folder(auxv: &[(u64, u64)], maps: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let words = auxv.iter().flat_map(|(kind, value)| [*kind, *value]);
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    fs::write(folder.path().join("auxv"), bytes).unwrap();
    fs::write(folder.path().join("maps"), maps).unwrap();
    symlink("/", folder.path().join("root")).unwrap();
    folder
}

/// This process's own dynamic linker, by its name.
fn own() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    paths.into_iter().find(|path| path.contains("/ld-")).unwrap().to_owned()
}

fn mappings(path: &str) -> String {
    format!(
        "10000-20000 r-xp 00000000 08:01 7 /no/such/program\n\
         70000-71000 r--p 00000000 08:01 9 {path}\n\
         71000-72000 r-xp 00001000 08:01 9 {path}\n"
    )
}

#[test]
fn the_dynamic_linker_is_found_by_where_it_is_in_memory_and_opened_below_the_processs_root() {
    let path = own();
    let offset = function(&File::open(&path).unwrap(), HOOK).unwrap().unwrap();
    let found = |auxv: &[(u64, u64)]| {
        let folder = folder(auxv, &mappings(&path));
        let found = linker_of(folder.path())?;
        Some((found.0.strip_prefix(folder.path().join("root")).unwrap().to_owned(), found.1))
    };
    let wanted = Some((PathBuf::from(path.trim_start_matches('/')), offset));
    assert_eq!(found(&[(6, 4096), (AT_BASE, 0x7_0000), (AT_ENTRY, 0x1_0400), (0, 0)]), wanted);
    // Started as a program, with the real program as its argument.
    assert_eq!(found(&[(6, 4096), (AT_BASE, 0), (AT_ENTRY, 0x7_1400), (0, 0)]), wanted);
}

#[test]
fn a_program_without_a_dynamic_linker_has_nothing_to_hook() {
    let static_program = built_without_linker();
    let folder = folder(&[(AT_BASE, 0), (AT_ENTRY, 0x7_1400)], &mappings(&static_program));
    assert_eq!(linker_of(folder.path()), None);
    let cut = self::folder(&[], &mappings(&own()));
    assert_eq!(linker_of(cut.path()), None);
    assert_eq!(linker_of(Path::new("/no/such/process")), None);
}

/// A program that does not have the function: it need not be static for that.
fn built_without_linker() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_vector_that_is_cut_short_has_no_value() {
    let mut auxv: Vec<u8> = [AT_BASE, 5].into_iter().flat_map(u64::to_ne_bytes).collect();
    assert_eq!((value(&auxv, AT_BASE), value(&auxv, AT_ENTRY)), (Some(5), None));
    auxv.truncate(15);
    assert_eq!(value(&auxv, AT_BASE), None);
}
