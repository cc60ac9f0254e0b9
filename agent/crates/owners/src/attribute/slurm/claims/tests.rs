use super::*;
use proptest::prelude::*;

const LIMIT: usize = 128 * 1024;

fn environ(bytes: &[u8]) -> SlurmEnv {
    SlurmEnv::read(bytes, 0).unwrap()
}

#[test]
fn of_several_variables_of_one_name_the_first_counts() {
    let claims = environ(b"SLURM_JOB_ID=1\0PATH=/bin\0SLURM_JOB_ID=2\0SLURM_JOB_NAME=a=b c\0");
    assert_eq!(claims.label(Label::JobId), Some("1"));
    assert_eq!(claims.label(Label::Name), Some("a=b c"));
}

#[test]
fn only_wanted_names_are_stored() {
    let claims = environ(
        b"SLURM_JOB_ID=1\0AWS_SECRET=x\0SLURM_JWT=secret\0XSLURM_JOB_NAME=x\0slurm_job_name=x\0\
          SLURM_JOB_NAMES=x\0SLURM_JOB_NAME\0=SLURM_JOB_NAME=x\0",
    );
    let expected =
        SlurmEnv { values: vec![("SLURM_JOB_ID", "1".to_owned())], ..SlurmEnv::default() };
    assert_eq!(claims, expected);
}

#[test]
fn a_title_over_the_environment_gives_no_variable() {
    let mut bytes = vec![0; 1500];
    bytes[..12].copy_from_slice(b"ray::IDLE   ");
    assert_eq!(environ(&bytes), SlurmEnv::default());
    // A title that overwrote the start of a variable.
    assert_eq!(environ(b"VLLM::Core\0JOB_ID=7\0").label(Label::JobId), None);
}

#[test]
fn a_value_that_is_too_long_or_not_text_is_dropped_whole() {
    let long = format!("SLURM_JOB_NAME={}\0SLURM_JOB_ACCOUNT=ml\0", "x".repeat(MAX_VALUE + 1));
    let claims = environ(long.as_bytes());
    assert_eq!((claims.label(Label::Name), claims.label(Label::Account)), (None, Some("ml")));
    let longest = format!("SLURM_JOB_NAME={}\0", "x".repeat(MAX_VALUE));
    assert_eq!(environ(longest.as_bytes()).label(Label::Name).map(str::len), Some(MAX_VALUE));
    assert_eq!(environ(b"SLURM_JOB_NAME=\xff\xfe\0").label(Label::Name), None);
}

#[test]
fn variables_beyond_the_limit_are_not_read() {
    let mut bytes = b"SLURM_JOB_ID=1\0A=".to_vec();
    bytes.resize(LIMIT - 20, b'x');
    bytes.extend(b"\0SLURM_JOB_NAME=cut-through\0SLURM_JOB_ACCOUNT=ml\0");
    let claims = environ(&bytes);
    assert!(claims.truncated);
    assert_eq!(claims.label(Label::JobId), Some("1"));
    assert_eq!((claims.label(Label::Name), claims.label(Label::Account)), (None, None));
}

#[test]
fn an_environment_of_exactly_the_limit_is_whole() {
    let mut bytes = b"SLURM_JOB_ID=1\0A=".to_vec();
    bytes.resize(LIMIT - 18, b'x');
    bytes.extend(b"\0SLURM_JOB_NAME=ab");
    assert_eq!(bytes.len(), LIMIT);
    let claims = environ(&bytes);
    assert_eq!((claims.label(Label::Name), claims.truncated), (Some("ab"), false));
}

#[test]
fn components_of_a_heterogeneous_job_are_distinguished() {
    let claims = environ(
        b"SLURM_JOB_ID_HET_GROUP_0=20\0SLURM_JOB_ID_PACK_GROUP_1=21\0\
          SLURM_JOB_PARTITION_HET_GROUP_1=gpu\0SLURM_JOB_PARTITION_HET_GROUP_1=later\0\
          SLURM_JOB_NAME_HET_GROUP_1=x\0SLURM_JOB_ID_HET_GROUP_99999=5\0",
    );
    assert_eq!((claims.component_of(20), claims.component_of(21)), (Some(0), Some(1)));
    assert_eq!(claims.component_of(5), None);
    let of_second: Vec<_> = claims.component(1).collect();
    assert_eq!(of_second, [(Label::JobId, "21"), (Label::Partition, "gpu")]);
}

proptest! {
    #[test]
    fn no_environment_makes_the_reader_fail_or_store_unwanted_names(
        bytes in any::<Vec<u8>>(),
        names in proptest::collection::vec("(SLURM_)?[A-Z_]{0,60}=.{0,300}", 0..20),
    ) {
        environ(&bytes);
        let claims = environ(names.join("\0").as_bytes());
        for (name, value) in &claims.values {
            prop_assert_eq!(known_name(name), Some(*name));
            prop_assert!(value.len() <= MAX_VALUE);
        }
    }
}
