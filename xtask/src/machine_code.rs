//! The machine code of the kernels: what the newest assembler makes of the PTX.
//!
//! On every architecture that the assembler knows, no kernel uses local memory, and kernels that move
//! all bytes of a shard do so by 128 bits. On architectures for data centres no kernel has more
//! registers than its ceiling, so that as many warps are resident as today.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::{Result, output, ptxas, pypi};

/// The most registers per thread, and the kernels that must not have more. The steps are those of the
/// occupancy of blocks with 256 threads: 100, 75, 62 and 50 %.
const REGISTERS: [(u32, &[&str]); 4] = [
    (
        32,
        &[
            "permute_sizes",
            "scan_sums",
            "chunk_tables",
            "frame_blosc_layout",
            "scatter_tile_1",
            "scatter_tile_2",
            "scatter_tile_4",
            "scatter_tile_8",
            "scatter_tile_16",
            "reduce_bits_4",
            "reduce_mean_1",
            "reduce_mean_2",
            "reduce_mean_4",
            "reduce_order_1",
            "reduce_order_2",
            "reduce_order_4",
            "unscatter_2",
            "unscatter_4",
            "unscatter_8",
            "unscatter_tile_2",
            "unscatter_tile_4",
            "unscatter_tile_16",
        ],
    ),
    (
        40,
        &[
            "scan_add",
            "reduce_bits_1",
            "reduce_bits_2",
            "reduce_bits_8",
            "reduce_mean_8",
            "reduce_order_8",
            "scatter_1",
            "scatter_2",
            "scatter_4",
            "unscatter_1",
            "unscatter_tile_1",
            "unscatter_tile_8",
        ],
    ),
    (
        48,
        &[
            "crc32",
            "crc32c_append",
            "crc32c_verify",
            "place_1",
            "place_2",
            "place_4",
            "place_8",
            "scan_whole",
            "scatter_8",
            "shuffle",
            "unshuffle",
            "unscatter_16",
        ],
    ),
    (
        64,
        &[
            "bit_shuffle",
            "bit_unshuffle",
            "frame_blosc_streams",
            "frame_gzip",
            "frame_zstd",
            "gather",
            "place_16",
            "reduce_bits_16",
            "scatter_16",
            "split",
        ],
    ),
];

/// The architectures for data centres that ceilings are for: a multiprocessor has room for 64 warps.
/// Where it has room for fewer, the assembler takes more registers, and occupancy stays.
const DATA_CENTRES: [u32; 4] = [80, 90, 100, 103];

/// Kernels that load and store at least [`WIDE_ACCESSES`] times 128 bits.
const WIDE: [&str; 5] = ["gather", "place_16", "scatter_16", "split", "unscatter_16"];
const WIDE_ACCESSES: u32 = 4;

/// What the machine code of a kernel does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Accesses {
    /// Loads of 128 bits of global memory.
    wide_loads: u32,
    wide_stores: u32,
    /// Loads and stores of local memory.
    local: u32,
}

/// Checks the modules in `files`. `folder` is for machine code.
pub(crate) fn check(files: &[PathBuf], folder: &Path) -> Result<()> {
    let tools = pypi::install("kernels-machine-code.txt")?.join("nvidia/cu13/bin");
    let assembler = tools.join("ptxas");
    let architectures = output(Command::new(&assembler).arg("--list-arch"))?;
    let architectures: Vec<u32> = architectures
        .split_whitespace()
        .filter_map(|word| word.trim_start_matches("sm_").parse().ok())
        .collect();
    if architectures.is_empty() {
        return Err(format!("{} lists no architectures", assembler.display()));
    }
    let works: Vec<_> = architectures
        .iter()
        .flat_map(|sm| files.iter().map(move |file| (*sm, file)))
        .collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let findings = thread::scope(|scope| {
        let parts: Vec<_> = works
            .chunks(works.len().div_ceil(threads))
            .map(|part| {
                let tools = &tools;
                scope.spawn(move || {
                    let checked = part
                        .iter()
                        .map(|(sm, file)| module(tools, file, folder, *sm));
                    checked.collect::<Result<Vec<_>>>()
                })
            })
            .collect();
        let joined = parts
            .into_iter()
            .map(|part| part.join().map_err(|_| "a check panicked")?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    let findings: Vec<String> = findings.into_iter().flatten().flatten().collect();
    if !findings.is_empty() {
        return Err(findings.join("\n"));
    }
    println!("machine code is as it should be on {architectures:?}");
    Ok(())
}

/// Checks a module on an architecture. Returns what is wrong.
fn module(tools: &Path, file: &Path, folder: &Path, sm: u32) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let code = folder.join(format!("{name}-{sm}.cubin"));
    for (kernel, resources) in ptxas::assemble(&tools.join("ptxas"), file, sm, &code)? {
        let ceiling = REGISTERS
            .iter()
            .find(|(_, kernels)| kernels.contains(&&*kernel));
        match ceiling {
            None => findings.push(format!("{kernel} has no ceiling of registers")),
            Some((ceiling, _)) => {
                let registers = resources.registers;
                if registers > *ceiling && DATA_CENTRES.contains(&sm) {
                    findings.push(format!(
                        "{kernel} has {registers} registers on sm_{sm}, and may have {ceiling}"
                    ));
                }
            }
        }
        if resources.local > 0 {
            findings.push(format!(
                "{kernel} keeps {} bytes per thread in memory on sm_{sm}",
                resources.local
            ));
        }
    }
    let text = output(Command::new(tools.join("nvdisasm")).arg(&code))?;
    for (kernel, accesses) in accesses(&text) {
        if accesses.local > 0 {
            let count = accesses.local;
            findings.push(format!(
                "{kernel} has {count} accesses to local memory on sm_{sm}"
            ));
        }
        let Accesses {
            wide_loads,
            wide_stores,
            ..
        } = accesses;
        if WIDE.contains(&&*kernel) && wide_loads.min(wide_stores) < WIDE_ACCESSES {
            findings.push(format!(
                "{kernel} has {wide_loads} loads and {wide_stores} stores of 128 bits on sm_{sm}, and \
                 should have {WIDE_ACCESSES}"
            ));
        }
    }
    Ok(findings)
}

/// Counts the accesses of each kernel in the output of nvdisasm.
fn accesses(text: &str) -> BTreeMap<String, Accesses> {
    let mut kernels = BTreeMap::new();
    let mut kernel = None;
    for line in text.lines() {
        // Not `.sectionflags` or `.sectioninfo`.
        if let Some(section) = line.trim_start().strip_prefix(".section\t") {
            let name = section.split(',').next();
            kernel = name
                .and_then(|name| name.strip_prefix(".text."))
                .map(str::to_owned);
            if let Some(name) = &kernel {
                kernels.insert(name.clone(), Accesses::default());
            }
            continue;
        }
        let Some(count) = kernel.as_ref().and_then(|name| kernels.get_mut(name)) else {
            continue;
        };
        for word in line.split_whitespace() {
            let mut parts = word.split('.');
            let counted = match parts.next() {
                Some("LDL" | "STL") => &mut count.local,
                Some("LDG") if parts.any(|part| part == "128") => &mut count.wide_loads,
                Some("STG") if parts.any(|part| part == "128") => &mut count.wide_stores,
                _ => continue,
            };
            *counted += 1;
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_counted_by_kernel() {
        let text = "\
	.section	.text.one,\"ax\",@progbits
	.sectioninfo	@\"SHI_REGISTERS=32\"
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/              @!P0 STG.E.128 desc[UR4][R2.64], R4 ;
        /*0030*/                   LDG.E.64 R4, desc[UR4][R2.64] ;
	.section	.text.two,\"ax\",@progbits
        /*0010*/                   LDG.E.128.CONSTANT R4, [R2.64] ;
        /*0010*/                   STL [R1], R4 ;
	.section	.nv.info,\"\",@\"SHT_CUDA_INFO\"
        /*0010*/                   STL [R1], R4 ;
";
        let one = Accesses {
            wide_loads: 1,
            wide_stores: 1,
            local: 0,
        };
        let two = Accesses {
            wide_loads: 1,
            wide_stores: 0,
            local: 1,
        };
        let expected = BTreeMap::from([("one".to_owned(), one), ("two".to_owned(), two)]);
        assert_eq!(accesses(text), expected);
    }

    #[test]
    fn each_kernel_has_one_ceiling() {
        let mut names: Vec<_> = REGISTERS.iter().flat_map(|(_, kernels)| *kernels).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(WIDE.iter().all(|kernel| names.contains(&kernel)));
    }
}
