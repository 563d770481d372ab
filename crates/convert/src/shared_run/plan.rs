//! The plan of a run: everything that its processes must agree on.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zarrs_cuda::storage::Owner;

use super::Part;
use super::division::{Division, PartStart};
use crate::failure::Failure;
use crate::open::RUN;

/// The version of the plan's format.
const VERSION: u64 = 1;

/// The plan of a run in parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunPlan {
    /// The version of this format.
    zarrs_cuda_run: u64,
    /// The version of the program. Another version may encode other bytes.
    program: String,
    /// A random name if the run was prepared, perhaps in the place of an equal one. The processes of other runs may
    /// make the plan at the same time, and all make it alike.
    run: String,
    /// The command, such as `reencode`.
    command: String,
    /// The arguments that affect the output, by the names of their options.
    arguments: Map<String, Value>,
    /// The setting of the engine that encodes. Bytes of shards depend on the engine, elements do not.
    backend: String,
    /// The place of the input, and a hash of all of its metadata.
    input: String,
    input_metadata: String,
    /// The number of parts.
    pub(crate) parts: NonZeroU64,
    /// Whether the store creates no values, so that values may be replaced by equal ones.
    pub(crate) may_replace: bool,
    /// The nodes of the output, in the order in which readers may see them: each group after the nodes in it.
    pub(crate) nodes: Vec<PlannedNode>,
    /// The number of stored chunks of each array of the input; `None` if they cannot be listed.
    chunks: Vec<Option<u64>>,
    /// The paths of arrays and groups that are left out, because they cannot be re-encoded.
    pub(crate) left_out: Vec<String>,
    /// The first shard of each part. A part ends where the next one begins. There is none if parts are no ranges of
    /// shards.
    pub(crate) starts: Vec<PartStart>,
    /// The number of shards of each part; none if that is not known. A shard that has only the fill value counts, and
    /// is not stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) shards: Vec<u64>,
    /// The output that moves to its place at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) made_apart: Option<MadeApart>,
}

/// The directories that move to the output at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MadeApart {
    /// The paths of the directories relative to the output, in the order in which they move. The `zarr.json` of the
    /// output, a group, comes after them.
    pub(super) paths: Vec<String>,
    /// The path of the input.
    pub(super) input: String,
    /// The text of the `zarr.json` when the run was planned. It is replaced by the new text.
    pub(super) group: Option<String>,
}

/// An array or a group of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedNode {
    /// The path relative to the output; empty for the output itself.
    pub(crate) path: String,
    /// The text of its `zarr.json`.
    pub(crate) metadata: String,
}

impl PlannedNode {
    pub(crate) fn is_array(&self) -> bool {
        let metadata: Result<Value, _> = serde_json::from_str(&self.metadata);
        metadata.is_ok_and(|metadata| metadata["node_type"] == "array")
    }
}

/// The facts that a process knows about its run before it reads the plan.
pub(crate) struct Wanted {
    pub(crate) command: &'static str,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) backend: String,
    pub(crate) input: String,
    pub(crate) input_metadata: u64,
    pub(crate) parts: NonZeroU64,
    pub(crate) nodes: Vec<PlannedNode>,
    pub(crate) chunks: Vec<Option<u64>>,
    pub(crate) left_out: Vec<String>,
    pub(crate) made_apart: Option<MadeApart>,
}

impl RunPlan {
    pub(crate) fn new(wanted: &Wanted, division: Division) -> Self {
        Self {
            zarrs_cuda_run: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            run: String::new(),
            command: wanted.command.to_owned(),
            arguments: wanted.arguments.clone(),
            backend: wanted.backend.clone(),
            input: wanted.input.clone(),
            input_metadata: format!("{:016x}", wanted.input_metadata),
            parts: wanted.parts,
            may_replace: false,
            nodes: wanted.nodes.clone(),
            chunks: wanted.chunks.clone(),
            left_out: wanted.left_out.clone(),
            starts: division.starts,
            shards: division.shards,
            made_apart: wanted.made_apart.clone(),
        }
    }

    /// Gives the run a name that no other run has.
    pub(super) fn with_name(mut self) -> Self {
        let name = RandomState::new().hash_one(Owner::this().to_string());
        self.run = format!("{name:016x}");
        self
    }

    /// Reads a stored plan. `shown` names the object.
    pub(crate) fn read(bytes: &[u8], shown: &str) -> Result<Self, Failure> {
        let not_understood = |error: serde_json::Error| {
            Failure::failed(format!("cannot understand the plan {shown}: {error}")).with_remedy(
                "delete OUT as a whole, with the plan in it, and begin again; or name another OUT",
            )
        };
        let value: Value = serde_json::from_slice(bytes).map_err(not_understood)?;
        let version = &value["zarrs_cuda_run"];
        if version.as_u64() != Some(VERSION) {
            return Err(Failure::failed(format!(
                "the plan {shown} has version {version}, and this program knows {VERSION}"
            ))
            .with_remedy(
                "let one version of the program do all parts, or delete OUT as a whole and begin again",
            ));
        }
        let plan: Self = serde_json::from_value(value).map_err(not_understood)?;
        let has_ranges = plan.made_apart.is_none();
        if has_ranges && plan.starts.len() as u64 != plan.parts.get() || !plan.starts.is_sorted() {
            return Err(Failure::failed(format!(
                "the plan {shown} has {} beginnings for {} parts, or not in their order",
                plan.starts.len(),
                plan.parts
            ))
            .with_remedy("delete OUT as a whole, and begin again"));
        }
        Ok(plan)
    }

    /// Returns the plan as it is stored.
    ///
    /// # Errors
    /// The plan would not be read as it is.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, String> {
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        match Self::read(&bytes, "that is made") {
            Ok(read) if read == *self => Ok(bytes),
            Ok(_) => Err("the plan would be read otherwise than it is".to_owned()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    pub(crate) fn input(&self) -> &str {
        &self.input
    }

    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    pub(super) fn arguments(&self) -> &Map<String, Value> {
        &self.arguments
    }

    pub(super) fn backend(&self) -> &str {
        &self.backend
    }

    /// Returns whether the input is one array that has no stored chunks.
    pub(super) fn is_of_an_empty_array(&self) -> bool {
        self.chunks == [Some(0)] && self.arguments.get("--recursive") != Some(&Value::Bool(true))
    }

    /// Returns whether the run makes an array or a group at `path`, or an array in which that lies, or a member of it.
    pub(super) fn makes(&self, path: &str) -> bool {
        let is_in = |inner: &str, outer: &str| {
            let rest = inner.strip_prefix(outer);
            outer.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if let Some(apart) = &self.made_apart {
            let mut nodes = apart.nodes();
            return nodes.any(|node| is_in(path, node) || is_in(node, path));
        }
        let mut nodes = self.nodes.iter();
        nodes.any(|node| is_in(&node.path, path) || node.is_array() && is_in(path, &node.path))
    }

    /// Returns the number of shards of all parts; `None` if that is not known.
    pub(super) fn all_shards(&self) -> Option<u64> {
        (!self.shards.is_empty()).then(|| self.shards.iter().sum())
    }

    /// Checks that this plan, at `shown`, is one of the run that is `wanted`.
    pub(crate) fn must_be(&self, wanted: &Wanted, shown: &str) -> Result<(), Failure> {
        let other = Self::new(wanted, Division::default());
        let Some(difference) = self.difference(&other) else {
            return Ok(());
        };
        Err(
            Failure::failed(format!("the plan {shown} is of another run: {difference}"))
                .with_remedy(format!(
                    "give each part the same arguments; or {}, when no part runs",
                    begin_again(wanted)
                )),
        )
    }

    /// Returns the first difference between this plan and the plan that a process would make, in words.
    fn difference(&self, other: &Self) -> Option<String> {
        let differ = |what: &str, stored: &dyn std::fmt::Display, here: &dyn std::fmt::Display| {
            Some(format!("{what} is {stored} there, and {here} here"))
        };
        if self.program != other.program {
            return differ("the version of the program", &self.program, &other.program);
        }
        if self.command != other.command {
            return differ("the command", &self.command, &other.command);
        }
        if self.parts != other.parts {
            return differ("the number of parts", &self.parts, &other.parts);
        }
        if self.input != other.input {
            return differ("IN", &self.input, &other.input);
        }
        let options = self.arguments.keys().chain(other.arguments.keys());
        for option in options {
            let [stored, here] = [self, other].map(|plan| shown(plan.arguments.get(option)));
            if stored != here {
                return differ(option, &stored, &here);
            }
        }
        if self.backend != other.backend {
            return differ("the engine", &self.backend, &other.backend);
        }
        if self.input_metadata != other.input_metadata {
            return Some(format!(
                "the metadata of {} have changed since the plan was made",
                self.input
            ));
        }
        let [stored, here] = [self, other].map(|plan| &plan.nodes);
        let of = |nodes: &[PlannedNode], path: &str| {
            nodes.iter().find(|node| node.path == path).cloned()
        };
        let paths = stored.iter().chain(here).map(|node| &node.path);
        for path in paths {
            let name = if path.is_empty() { "OUT" } else { path };
            match (of(stored, path), of(here, path)) {
                (Some(_), None) => return Some(format!("it makes {name}, and this one does not")),
                (None, Some(_)) => {
                    return Some(format!("it does not make {name}, and this one does"));
                }
                (stored, here) if stored != here => {
                    return Some(format!("the metadata of {name} are others there"));
                }
                _ => {}
            }
        }
        if self.left_out != other.left_out {
            let [stored, here] = [self, other].map(|plan| plan.left_out.join(", "));
            return differ("what is left out", &stored, &here);
        }
        for (number, (stored, here)) in self.chunks.iter().zip(&other.chunks).enumerate() {
            if stored != here {
                let name = self.nodes.get(number).map_or("", |node| &node.path);
                let count =
                    |chunks: &Option<u64>| chunks.map_or("unknown".to_owned(), |n| n.to_string());
                let what = format!(
                    "the number of stored chunks of IN{}{name}",
                    if name.is_empty() { "" } else { "/" }
                );
                return differ(&what, &count(stored), &count(here));
            }
        }
        (stored != here).then(|| "the order of the arrays is another one".to_owned())
    }

    /// Returns the first shard of `part`, and the first shard behind it.
    pub(crate) fn bounds(&self, part: Part) -> (PartStart, Option<PartStart>) {
        let number = usize::try_from(part.number()).unwrap_or(usize::MAX);
        let end = PartStart {
            array: usize::MAX,
            shard: u128::MAX,
        };
        let start = self.starts.get(number).copied().unwrap_or(end);
        (start, self.starts.get(number + 1).copied())
    }
}

/// Returns the way to begin a run again whose plan is of another one.
fn begin_again(wanted: &Wanted) -> String {
    match (&wanted.made_apart, wanted.command) {
        (Some(_), _) => format!("delete {RUN} beside the levels, and begin again"),
        (None, "reencode") => {
            "name another OUT; or begin again by --prepare with --overwrite".to_owned()
        }
        (None, _) => "name another OUT; or delete OUT as a whole, and begin again".to_owned(),
    }
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "not given".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(values)) if values.iter().all(Value::is_string) => {
            let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            texts.join(" ")
        }
        Some(value) => value.to_string(),
    }
}
