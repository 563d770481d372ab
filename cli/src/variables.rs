//! Finds misspelt variables of the environment, which would do nothing in silence.

use std::env;

/// The variables of users.
const KNOWN: [&str; 3] = [
    "ZARRS_CUDA_BACKEND",
    "ZARRS_CUDA_DEVICES",
    "ZARRS_CUDA_NVCOMP",
];

const PREFIX: &str = "ZARRS_CUDA_";

/// The variable by which `doctor` marks the process that it begins to look for GPUs.
pub(crate) const LOOKS: &str = "ZARRS_CUDA_DOCTOR_LOOKS";

/// The words behind the prefix in the names of variables of tests and benchmarks. A name may go on behind a word
/// that ends with an underscore.
const OF_DEVELOPERS: [&str; 19] = [
    "BENCH_",
    "BLESS",
    "COMMIT",
    "COUNTS",
    "EMULATED",
    "EXPORT",
    "FUZZ_",
    "GPU_CASES",
    "GPU_STREAMS",
    "INTEROP_ARRAYS",
    "LIBCUDA",
    "LIMIT_",
    "NCU",
    "REQUIRE_GPU",
    "REQUIRE_NVCOMP",
    "SANITIZER",
    "SECTIONS",
    "SIMULATED_ARRAYS",
    "TEST_",
];

/// The most wrong letters of a name that is taken for a misspelt one.
const MOST_WRONG: usize = 3;

/// Returns a sentence for each variable of the environment that looks like one of these packages and is none, with
/// the known name that is meant, if one is close.
#[must_use]
pub fn unknown() -> Vec<String> {
    let names = env::vars_os().map(|(name, _)| name);
    unknown_among(names.filter_map(|name| name.into_string().ok()))
}

fn unknown_among(names: impl Iterator<Item = String>) -> Vec<String> {
    let is_unknown = |name: &String| {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            return false;
        };
        let is_of_developers = OF_DEVELOPERS
            .into_iter()
            .any(|word| match word.strip_suffix('_') {
                Some(_) => rest.starts_with(word) && rest != word,
                None => rest == word,
            });
        !KNOWN.contains(&name.as_str()) && name != LOOKS && !is_of_developers
    };
    let mut unknown: Vec<String> = names.filter(is_unknown).collect();
    unknown.sort_unstable();
    let told = unknown.into_iter().map(|name| {
        // The number of wrong letters. A name that goes on behind a known name has none.
        let distance = |known: &&str| {
            if name.starts_with(known) {
                0
            } else {
                strsim::damerau_levenshtein(&name, known)
            }
        };
        let near = KNOWN.into_iter().min_by_key(distance);
        let near = near.filter(|near| distance(near) <= MOST_WRONG);
        let near = near.map_or_else(String::new, |near| format!(" Did you mean {near}?"));
        format!(
            "{name} in the environment does nothing: there are {}.{near}",
            KNOWN.join(", ")
        )
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::unknown_among;

    #[test]
    fn unknown_names_are_told_with_the_known_name_that_is_close() {
        let told = |names: &[&str]| unknown_among(names.iter().map(|name| (*name).to_string()));
        assert!(
            told(&[
                "PATH",
                "ZARRS_CUDA_DEVICES",
                "ZARRS_CUDA_TEST_SEED",
                "ZARRS_CUDA_GPU_CASES",
                "ZARR_ZARRS_CUDA__DEVICES"
            ])
            .is_empty()
        );
        for (name, near) in [
            ("ZARRS_CUDA_DEVICE", "ZARRS_CUDA_DEVICES?"),
            ("ZARRS_CUDA_BACKENDS", "ZARRS_CUDA_BACKEND?"),
            ("ZARRS_CUDA_NVCOMP_PATH", "ZARRS_CUDA_NVCOMP?"),
            // A variable of developers has a longer name, or a shorter one.
            ("ZARRS_CUDA_GPU", "ZARRS_CUDA_NVCOMP."),
            ("ZARRS_CUDA_TEST", "ZARRS_CUDA_NVCOMP."),
            ("ZARRS_CUDA_LIMIT_", "ZARRS_CUDA_NVCOMP."),
            ("ZARRS_CUDA_BLESSED", "ZARRS_CUDA_NVCOMP."),
        ] {
            let told = told(&["HOME", name]);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(
                told[0].starts_with(name) && told[0].ends_with(near),
                "{told:?}"
            );
        }
    }
}
