//! Looks for GPUs in this process, whose driver may hang or crash it.

use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{FillValue, data_type};
use zarrs_codec::BytesToBytesCodecTraits;
use zarrs_cuda::{CudaShardingCodecBuilder, Machine, Options};
use zarrs_cuda_convert::words::bytes_text;

use crate::common::Common;
use crate::explain::estimates_json;

/// The chains to explain, by the codec that follows `bytes`.
const CHAINS: [&str; 4] = ["none", "zstd:1", "gzip:1", "blosc-lz4:5:shuffle"];

/// Looks for GPUs. Returns lines for people, the members for the JSON object of `doctor`, and whether the settings
/// of arrays can be kept on this machine, or why not.
pub(super) fn look(common: &Common) -> Value {
    // The command is a process of its own, so that asking for devices harms no application.
    let options = asked(common);
    let machine = zarrs_cuda::machine(&options);
    let not_asked = zarrs_cuda::machine(&common.options()).devices.err();
    let not_asked = not_asked.filter(|_| machine.devices.is_ok());
    let (is_well, verdict) = machine.verdict(&common.options());
    let mut lines = of_devices(&machine);
    lines.push(verdict.clone());
    let if_asked = if not_asked.is_some() {
        ", if a GPU is asked for"
    } else {
        ""
    };
    lines.push(format!(
        "\nshards of 256,256,256 uint16 with subchunks of 32,32,32 would run{if_asked}:"
    ));
    let chains: Vec<_> = CHAINS
        .iter()
        .map(|chain| (*chain, runs_where(chain, &options)))
        .collect();
    lines.extend(
        chains
            .iter()
            .map(|(chain, (engine, why))| format!("  {chain:<19}  {engine}: {why}")),
    );
    let typical = zarrs_cuda::typical_shards(&options);
    lines.push("\nestimated to encode one such shard, from figures of other machines:".to_string());
    lines.extend(
        typical
            .iter()
            .map(|kind| format!("  {:<20}  {}", kind.codec, kind.estimates)),
    );
    json!({
        "lines": lines,
        "members": {
            "machine": json_of(&machine),
            "not_used": not_asked,
            "use": { "is_well": is_well, "text": verdict },
            "chains": chains.iter().map(|(chain, (engine, why))| {
                json!({ "codec": chain, "engine": engine, "why": why })
            }).collect::<Vec<_>>(),
            "estimates": typical.iter().map(|kind| {
                json!({ "codec": kind.codec, "seconds": estimates_json(&kind.estimates) })
            }).collect::<Vec<_>>(),
        },
    })
}

/// Returns the lines about devices: the driver, the devices, and nvCOMP.
fn of_devices(machine: &Machine) -> Vec<String> {
    let mut lines = Vec::new();
    let driver = &machine.driver;
    let versions = [
        driver
            .cuda
            .map(|(major, minor)| format!("for CUDA {major}.{minor}")),
        driver
            .kernel_module
            .as_ref()
            .map(|version| format!("kernel module {version}")),
        driver
            .library
            .as_ref()
            .map(|file| format!("library {}", file.display())),
    ];
    let versions: Vec<_> = versions.into_iter().flatten().collect();
    if !versions.is_empty() {
        lines.push(format!("driver: {}", versions.join(", ")));
    }
    match &machine.devices {
        Err(reason) => lines.push(format!("devices: none: {reason}")),
        Ok(devices) => lines.extend(devices.iter().map(|device| {
            format!(
                "device {}: {}, {}, compute capability {}.{}",
                device.ordinal,
                device.name,
                bytes_text(device.memory as u64),
                device.compute_capability.0,
                device.compute_capability.1
            )
        })),
    }
    match &machine.nvcomp {
        Err(reason) => lines.push(format!("nvCOMP: none: {reason}")),
        Ok(nvcomp) => lines.push(format!(
            "nvCOMP: {} in {}",
            nvcomp.version,
            nvcomp.path.display()
        )),
    }
    lines
}

/// Returns the options with which devices are looked for. The command is a process of its own, so that no
/// application loses by an initialised driver.
fn asked(common: &Common) -> Options {
    common.options().with_consent("doctor")
}

fn json_of(machine: &Machine) -> Value {
    let (devices, no_devices) = match &machine.devices {
        Ok(devices) => (devices.as_slice(), None),
        Err(reason) => (&[][..], Some(reason)),
    };
    let devices: Vec<_> = devices
        .iter()
        .map(|device| {
            json!({
                "ordinal": device.ordinal, "name": device.name, "memory": device.memory,
                "compute_capability": [device.compute_capability.0, device.compute_capability.1],
            })
        })
        .collect();
    let nvcomp = match &machine.nvcomp {
        Ok(nvcomp) => json!({ "version": nvcomp.version, "path": nvcomp.path }),
        Err(reason) => json!({ "problem": reason }),
    };
    json!({
        "memory": null, "devices": devices, "no_devices": no_devices, "nvcomp": nvcomp,
        "driver": {
            "cuda": machine.driver.cuda.map(|(major, minor)| format!("{major}.{minor}")),
            "kernel_module": machine.driver.kernel_module,
            "library": machine.driver.library,
        },
    })
}

/// Returns the engine that runs a chain, and the reason for this choice.
fn runs_where(chain: &str, options: &Options) -> (String, String) {
    let explained = || {
        let codecs: Vec<Arc<dyn BytesToBytesCodecTraits>> = match chain {
            "none" => Vec::new(),
            chain => chain
                .parse::<zarrs_cuda_convert::SubchunkCodec>()
                .and_then(|codec| {
                    let codecs = codec.for_elements(&data_type::uint16());
                    codecs.map_err(|failure| failure.to_string())
                })?,
        };
        let extents = |extent: u64| NonZeroU64::new(extent).map(|extent| vec![extent; 3]);
        let (Some(shard), Some(subchunk)) = (extents(256), extents(32)) else {
            return Err("no shape".to_string());
        };
        let codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16())
            .bytes_to_bytes_codecs(codecs)
            .options(options.clone())
            .build_arc()
            .map_err(|error| error.to_string())?;
        codec
            .explain(&shard, &data_type::uint16(), &FillValue::from(0_u16))
            .map_err(|error| error.to_string())
    };
    match explained() {
        Ok(explanation) => (explanation.engine.to_string(), explanation.why),
        Err(reason) => ("refused".to_string(), reason),
    }
}
