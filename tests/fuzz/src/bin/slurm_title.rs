//! Command lines as slurmstepd writes them: any text; a job is a number that stands in it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some((job, step)) = gpuwho_owners::attribute::slurm::fuzz::title(text) {
        assert!(text.starts_with("slurmstepd: [") && text.contains(&job.to_string()[..1]));
        assert!(step.is_none_or(|step| !step.is_empty()));
    }
});
