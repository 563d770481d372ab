//! The properties of a PTX module.

use crate::Result;

/// The PTX of one file of kernels.
pub(crate) struct Module {
    /// The name of the file, without its extension.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) entries: Vec<Entry>,
}

/// A kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The largest number of threads per block.
    pub(crate) block: u32,
}

impl Module {
    /// Parses `text`, and checks that every supported driver accepts it.
    pub(crate) fn parse(name: &str, text: String) -> Result<Self> {
        for line in [".version 8.0", ".target sm_70", ".address_size 64"] {
            if !text.lines().any(|l| l == line) {
                return Err(format!("{name}.ptx: there is no line {line:?}"));
            }
        }
        if let Some(line) = text.lines().find(|l| l.trim_start().starts_with(".extern")) {
            return Err(format!("{name}.ptx: not all is defined here: {line:?}"));
        }
        let entries = entries(&text).map_err(|error| format!("{name}.ptx: {error}"))?;
        if entries.is_empty() {
            return Err(format!("{name}.ptx: there is no kernel in it"));
        }
        let name = name.to_owned();
        Ok(Self {
            name,
            text,
            entries,
        })
    }
}

/// `.visible .entry name(`, the parameters, and `.maxntid x, y, z` before the body.
fn entries(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for declaration in text.split(".entry ").skip(1) {
        let (name, rest) = declaration
            .split_once('(')
            .ok_or("an entry has no parameters")?;
        let head = rest.split('{').next().unwrap_or_default();
        let block = head
            .split_once(".maxntid ")
            .and_then(|(_, sizes)| sizes.split([',', '\n']).next())
            .and_then(|size| size.trim().parse().ok())
            .ok_or_else(|| format!("{name} has no __launch_bounds__"))?;
        let name = name.trim().to_owned();
        entries.push(Entry { name, block });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";

    #[test]
    fn kernels_are_found_with_their_blocks() {
        let text = format!(
            "{HEAD}\t// .globl\tone\n.visible .entry one(\n\t.param .u64 one_param_0\n)\n\
             .maxntid 256, 1, 1\n{{\n\tret;\n}}\n.visible .entry two()\n.maxntid 32, 1, 1\n{{\n}}\n"
        );
        let entries = Module::parse("m", text).map(|m| m.entries);
        let expected = [("one", 256), ("two", 32)].map(|(name, block)| Entry {
            name: name.into(),
            block,
        });
        assert_eq!(entries, Ok(expected.into()));
    }

    #[test]
    fn what_a_driver_may_refuse_is_refused_here() {
        let body = ".visible .entry one()\n.maxntid 32, 1, 1\n{\n}\n";
        assert!(Module::parse("m", format!("{HEAD}{body}")).is_ok());
        for text in [
            format!("{}{body}", HEAD.replace("8.0", "8.1")),
            format!("{}{body}", HEAD.replace("sm_70", "sm_80")),
            format!("{HEAD}{}", body.replace(".maxntid", ".reqntid")),
            format!("{HEAD}.extern .shared .align 16 .b8 s[];\n{body}"),
            HEAD.to_owned(),
        ] {
            assert!(Module::parse("m", text.clone()).is_err(), "{text}");
        }
    }
}
