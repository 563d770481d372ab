//! Finds misspelt variables of the environment, which would do nothing in silence.

use std::env;

/// The variables of users.
const KNOWN: [&str; 3] = [
    "ZARRS_CUDA_BACKEND",
    "ZARRS_CUDA_DEVICES",
    "ZARRS_CUDA_NVCOMP",
];

const PREFIX: &str = "ZARRS_CUDA_";

/// The words behind the prefix with which the variables of tests and benchmarks begin.
const OF_DEVELOPERS: [&str; 16] = [
    "BENCH",
    "BLESS",
    "COMMIT",
    "EMULATED",
    "EXPORT",
    "FUZZ",
    "GPU",
    "INTEROP",
    "LIBCUDA",
    "LIMIT",
    "NCU",
    "REQUIRE",
    "SANITIZER",
    "SECTIONS",
    "SIMULATED",
    "TEST",
];

/// Returns a sentence for each variable of the environment that looks like one of these packages and is none, with
/// the known name that is closest.
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
        let word = rest.split('_').next().unwrap_or(rest);
        !KNOWN.contains(&name.as_str()) && !OF_DEVELOPERS.contains(&word)
    };
    let mut unknown: Vec<String> = names.filter(is_unknown).collect();
    unknown.sort_unstable();
    let told = unknown.into_iter().map(|name| {
        let distance = |known: &&str| strsim::damerau_levenshtein(&name, known);
        let near = KNOWN.into_iter().min_by_key(distance).unwrap_or_default();
        format!(
            "{name} in the environment does nothing: there are {}. Did you mean {near}?",
            KNOWN.join(", ")
        )
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::unknown_among;

    #[test]
    fn the_closest_name_is_told() {
        let told = |names: &[&str]| unknown_among(names.iter().map(|name| (*name).to_string()));
        assert!(
            told(&[
                "PATH",
                "ZARRS_CUDA_DEVICES",
                "ZARRS_CUDA_TEST_SEED",
                "ZARR_ZARRS_CUDA__DEVICES"
            ])
            .is_empty()
        );
        for (name, near) in [
            ("ZARRS_CUDA_DEVICE", "ZARRS_CUDA_DEVICES?"),
            ("ZARRS_CUDA_BACKENDS", "ZARRS_CUDA_BACKEND?"),
            ("ZARRS_CUDA_NVCOMP_PATH", "ZARRS_CUDA_NVCOMP?"),
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
