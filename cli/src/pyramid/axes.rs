//! The axes of an image, from arguments and from the metadata of the image.

use std::fmt;
use std::str::FromStr;

use zarrs_cuda::writer::Axis;
use zarrs_cuda_convert::Failure;

/// The value of `--axis`: `y`, or `y,unit=micrometer,scale=0.325`. A member that the value leaves out is
/// `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AxisArg {
    pub(super) name: String,
    pub(super) kind: Option<String>,
    pub(super) unit: Option<String>,
    pub(super) scale: Option<f64>,
    pub(super) translation: Option<f64>,
    pub(super) factor: Option<u64>,
}

impl FromStr for AxisArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |key: &str, value: &str| match value.parse() {
            Ok(number) if f64::is_finite(number) => Ok(number),
            _ => Err(format!("{key} is a number, and not `{value}`")),
        };
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default().to_string();
        if name.is_empty() || name.contains('=') {
            return Err("it begins with the name of an axis, as y,unit=micrometer".to_string());
        }
        let mut axis = Self {
            name,
            ..Self::default()
        };
        for part in parts {
            match part.split_once('=') {
                Some(("type", kind)) => axis.kind = Some(kind.to_string()),
                Some(("unit", unit)) => axis.unit = Some(unit.to_string()),
                Some(("scale", scale)) => {
                    let scale = number("scale", scale)?;
                    if scale <= 0.0 {
                        return Err("scale is above 0".to_string());
                    }
                    axis.scale = Some(scale);
                }
                Some(("translation", at)) => axis.translation = Some(number("translation", at)?),
                Some(("factor", "1")) => axis.factor = Some(1),
                Some(("factor", "2")) => axis.factor = Some(2),
                Some(("factor", _)) => return Err("factor is 1 or 2".to_string()),
                _ => {
                    return Err(format!(
                        "`{part}` is none of type=, unit=, scale=, translation= and factor="
                    ));
                }
            }
        }
        Ok(axis)
    }
}

/// Writes the axis as the value of `--axis`.
impl fmt::Display for AxisArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            kind,
            unit,
            scale,
            translation,
            factor,
        } = self;
        let number = |number: &f64| number.to_string();
        let members = [
            ("type", kind.clone()),
            ("unit", unit.clone()),
            ("scale", scale.as_ref().map(number)),
            ("translation", translation.as_ref().map(number)),
            ("factor", factor.map(|factor| factor.to_string())),
        ];
        f.write_str(name)?;
        for (member, value) in members {
            if let Some(value) = value {
                write!(f, ",{member}={value}")?;
            }
        }
        Ok(())
    }
}

impl AxisArg {
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_string(),
            ..Self::default()
        }
    }

    /// Returns this axis, in which members that are `None` have the values of `other`.
    fn or(self, other: &Self) -> Self {
        Self {
            name: self.name,
            kind: self.kind.or_else(|| other.kind.clone()),
            unit: self.unit.or_else(|| other.unit.clone()),
            scale: self.scale.or(other.scale),
            translation: self.translation.or(other.translation),
            factor: self.factor.or(other.factor),
        }
    }

    /// Returns the type of the axis: the given one, or the usual one of an axis with this name; `None` for
    /// other names.
    fn kind(&self) -> Option<&str> {
        self.kind.as_deref().or(match self.name.as_str() {
            "t" | "time" => Some("time"),
            "c" | "channel" => Some("channel"),
            "z" | "y" | "x" => Some("space"),
            _ => None,
        })
    }

    /// Returns the number of elements of a level that become one element of the level below, along this axis.
    pub(super) fn factor(&self) -> u64 {
        let usual = if self.kind() == Some("space") { 2 } else { 1 };
        self.factor.unwrap_or(usual)
    }

    pub(super) fn axis(&self) -> Axis {
        let mut axis = Axis::other(&self.name, self.kind()).with_factor(self.factor());
        if let Some(unit) = &self.unit {
            axis = axis.with_unit(unit);
        }
        if let Some(scale) = self.scale {
            axis = axis.with_scale(scale);
        }
        if let Some(translation) = self.translation {
            axis = axis.with_translation(translation);
        }
        axis
    }
}

/// Returns the axes of an array of `rank` dimensions. Arguments (`asked`) take precedence over the metadata
/// of the image, and these over the dimension names of the array.
pub(super) fn chosen(
    rank: usize,
    asked: &[AxisArg],
    described: &[AxisArg],
    dimension_names: Option<&[Option<String>]>,
) -> Result<Vec<AxisArg>, Failure> {
    let named = || -> Option<Vec<AxisArg>> {
        let names = dimension_names?.iter();
        names
            .map(|name| Some(AxisArg::named(name.as_deref()?)))
            .collect()
    };
    let known = if described.is_empty() {
        named().unwrap_or_default()
    } else {
        described.to_vec()
    };
    if known.is_empty() {
        if asked.len() == rank {
            return Ok(asked.to_vec());
        }
        return Err(Failure::usage(format!(
            "the array has {rank} axes without names, and {} were given",
            asked.len()
        ))
        .with_remedy(
            "name all of them, in the order of the array's: --axis t --axis y,unit=micrometer,scale=0.325 --axis x,unit=micrometer,scale=0.325",
        ));
    }
    if known.len() != rank {
        return Err(Failure::failed(format!(
            "the metadata of the image has {} axes, and its level 0 has {rank}",
            known.len()
        )));
    }
    for (number, axis) in asked.iter().enumerate() {
        let is_named = |other: &AxisArg| other.name == axis.name;
        if !known.iter().any(is_named) {
            let names: Vec<_> = known.iter().map(|axis| axis.name.as_str()).collect();
            return Err(Failure::usage(format!(
                "the image has no axis {:?}: its axes are {}",
                axis.name,
                names.join(", ")
            )));
        }
        if asked[..number].iter().any(is_named) {
            let message = format!("--axis is given twice for {:?}", axis.name);
            return Err(Failure::usage(message));
        }
    }
    let axes = known.iter().map(|axis| {
        let asked = asked.iter().find(|asked| asked.name == axis.name);
        match asked {
            Some(asked) => Ok(asked.clone().or(axis)),
            None if described.is_empty() && axis.kind().is_none() => {
                Err(Failure::usage(format!(
                    "its dimension name does not say what the axis {:?} is",
                    axis.name
                ))
                .with_remedy(format!(
                    "say it: --axis {},type=space, or another type of OME-Zarr (time, channel), or --axis {} for none",
                    axis.name, axis.name
                )))
            }
            None => Ok(axis.clone()),
        }
    });
    axes.collect()
}

#[cfg(test)]
mod tests {
    use super::{AxisArg, chosen};

    fn axis(text: &str) -> AxisArg {
        text.parse().unwrap()
    }

    #[test]
    fn axes_are_parsed() {
        assert_eq!(axis("y"), AxisArg::named("y"));
        let all = AxisArg {
            name: "depth".to_string(),
            kind: Some("space".to_string()),
            unit: Some("micrometer".to_string()),
            scale: Some(0.5),
            translation: Some(-1.0),
            factor: Some(1),
        };
        let text = "depth, type=space, unit=micrometer, scale=0.5, translation=-1, factor=1";
        assert_eq!(axis(text), all);
        for wrong in [
            "",
            "=y",
            "unit=second",
            "y,second",
            "y,scale=0",
            "y,scale=-1",
            "y,scale=inf",
            "y,translation=x",
            "y,factor=3",
            "y,",
        ] {
            assert!(wrong.parse::<AxisArg>().is_err(), "{wrong}");
        }
        assert_eq!([axis("x").factor(), axis("t").factor()], [2, 1]);
        assert_eq!(axis("q,type=space").factor(), 2);
    }

    #[test]
    fn arguments_come_first() {
        let names = ["t", "y"].map(|name| Some(name.to_string()));
        let described = [axis("t,unit=second,scale=2"), axis("y,scale=3")];
        let asked = [axis("y,unit=meter"), axis("t,scale=5")];
        let expected = [axis("t,unit=second,scale=5"), axis("y,unit=meter,scale=3")];
        assert_eq!(
            chosen(2, &asked, &described, Some(&names)).unwrap(),
            expected
        );
        assert_eq!(
            chosen(2, &[], &[], Some(&names)).unwrap(),
            [axis("t"), axis("y")]
        );
        // Without names every axis has to be given, in order.
        assert_eq!(chosen(2, &asked, &[], None).unwrap(), asked);
        assert_eq!(chosen(2, &asked, &[], Some(&[None, None])).unwrap(), asked);
        assert!(chosen(2, &asked[..1], &[], None).is_err());
        assert!(chosen(2, &[axis("q")], &[], Some(&names)).is_err());
        assert!(chosen(2, &[axis("y"), axis("y")], &[], Some(&names)).is_err());
        assert!(chosen(3, &[], &described, None).is_err());
        let unusual = ["t", "depth"].map(|name| Some(name.to_string()));
        assert!(chosen(2, &[], &[], Some(&unusual)).is_err());
        let depth = [axis("depth")];
        assert_eq!(
            chosen(2, &depth, &[], Some(&unusual)).unwrap(),
            [axis("t"), axis("depth")]
        );
    }
}
