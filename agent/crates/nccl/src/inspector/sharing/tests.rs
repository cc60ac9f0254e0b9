use super::*;
use crate::inspector::sources::{Content, MeanValues};
use gpuwho_owners::tenant_files::TenantFile;

fn source(process: u32, user: u32) -> Source {
    Source {
        process: ProcKey { pid: process, start_ticks: 1 },
        owner: QuotaKey::of_user(user),
        content: Content::Exposition(MeanValues::new(TenantFile::direct(
            &tempfile::tempfile().unwrap(),
        ))),
        is_shared: false,
    }
}

/// Files of a process by user, four per process.
fn files(users: &[(u32, u64)]) -> HashMap<FileKey, Source> {
    let all = users.iter().flat_map(|(user, count)| (0..*count).map(|file| (*user, file)));
    all.map(|(user, file)| {
        let process = user * 10_000 + u32::try_from(file).unwrap() / 4;
        (FileKey::of(user, file), source(process, user))
    })
    .collect()
}

#[test]
fn the_files_of_a_process_are_bounded() {
    let most = MAX_OF_PROCESS as u64;
    let process = ProcKey { pid: 7, start_ticks: 1 };
    let mut files = HashMap::new();
    for file in 0..most {
        assert_eq!(make_room(&files, process, QuotaKey::of_user(1)), Ok(None));
        files.insert(FileKey::of(1, file), source(7, 1));
    }
    assert_eq!(make_room(&files, process, QuotaKey::of_user(1)), Err(()));
    let other = ProcKey { pid: 8, start_ticks: 1 };
    assert_eq!(make_room(&files, other, QuotaKey::of_user(1)), Ok(None));
}

#[test]
fn the_owner_with_most_files_gives_way_until_others_have_as_many() {
    let mut files = files(&[(1, 500), (2, 12)]);
    let process = |pid| ProcKey { pid, start_ticks: 1 };
    assert_eq!(files.len(), MAX_FILES);
    assert_eq!(make_room(&files, process(1), QuotaKey::of_user(1)), Err(()));
    for file in 0..200 {
        let gone = make_room(&files, process(50_000 + file), QuotaKey::of_user(3)).unwrap();
        let gone = files.remove(&gone.unwrap()).unwrap();
        assert_eq!(gone.owner, QuotaKey::of_user(1));
        files.insert(FileKey::of(3, file.into()), source(50_000 + file, 3));
    }
    assert_eq!(files.len(), MAX_FILES);
}

#[test]
fn a_flood_gets_only_its_own_part_and_the_rest() {
    let files = files(&[(1, 100), (2, 1), (3, 2)]);
    let mut turns = Turns::default();
    let mut had = HashMap::new();
    for _ in 0..2 {
        let order = turns.order(&files);
        turns.begin();
        let mut parts = Parts::new(900, order.len());
        for (owner, mine) in order {
            let part = parts.next();
            // The first user uses all of its part, the others little.
            let takes = if mine.len() == 100 { part } else { part.min(10) };
            parts.spend(takes);
            turns.record(owner, takes);
            had.insert(mine.len(), takes);
        }
    }
    assert_eq!(had, HashMap::from([(1, 10), (2, 10), (100, 880)]));
}
