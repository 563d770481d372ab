//! Reads the `fill_value` of Zarr v2 as numpy reads it.
//!
//! Writers of Zarr v2 accept any JSON value: `"0"` or `0.0` for integers, `null` for any data type. numpy
//! converts the value. zarrs requires the JSON type that belongs to the data type.

use serde_json::{Value, json};

/// Returns the fill value in the form that zarrs reads; `None` if that is `stored` itself.
///
/// `dtype` is a data type of Zarr v2, as `<i4`. The function also returns `None` if numpy cannot convert the
/// value without loss: then zarrs refuses it.
pub(super) fn as_zarrs_reads(dtype: &str, stored: &Value) -> Option<Value> {
    let kind = dtype.trim_start_matches(['<', '>', '|', '=']);
    let read = match kind.chars().next()? {
        'b' => boolean(stored),
        'i' | 'u' => integer(stored),
        'f' => float(stored),
        'c' => complex(stored),
        'M' | 'm' if stored.is_null() => Some(json!("NaT")),
        // zarr-python reads a missing fill value as the empty string.
        'U' if stored.is_null() => Some(json!("")),
        _ => None,
    }?;
    (read != *stored).then_some(read)
}

fn boolean(stored: &Value) -> Option<Value> {
    let number = stored.as_f64().filter(|number| number.is_finite())?;
    Some(Value::Bool(number != 0.0))
}

fn integer(stored: &Value) -> Option<Value> {
    match stored {
        Value::Bool(is_one) => Some(json!(u8::from(*is_one))),
        Value::Number(number) if number.is_f64() => whole(number.as_f64()?),
        Value::String(text) => {
            let text = text.trim();
            let signed = text.parse::<i64>().ok().map(|number| json!(number));
            signed.or_else(|| Some(json!(text.parse::<u64>().ok()?)))
        }
        _ => None,
    }
}

/// Returns `number` as a JSON integer; `None` if it is no integer, or so large that a double may have rounded
/// it.
fn whole(number: f64) -> Option<Value> {
    /// 2^53: above it, a double cannot have every integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[allow(clippy::cast_possible_truncation, reason = "it is a small integer")]
    (number.trunc().to_bits() == number.to_bits() && number.abs() <= EXACT)
        .then(|| json!(number as i64))
}

fn float(stored: &Value) -> Option<Value> {
    match stored {
        Value::Bool(is_one) => Some(json!(f64::from(u8::from(*is_one)))),
        // zarrs reads these three texts itself.
        Value::String(text) if ["NaN", "Infinity", "-Infinity"].contains(&&**text) => None,
        Value::String(text) => {
            let number: f64 = text.trim().parse().ok()?;
            Some(if number.is_nan() {
                json!("NaN")
            } else if number.is_infinite() {
                json!(if number > 0.0 {
                    "Infinity"
                } else {
                    "-Infinity"
                })
            } else {
                json!(number)
            })
        }
        _ => None,
    }
}

fn complex(stored: &Value) -> Option<Value> {
    match stored {
        Value::Null => Some(json!([0.0, 0.0])),
        Value::Number(_) | Value::Bool(_) => Some(json!([
            float(stored).unwrap_or_else(|| stored.clone()),
            0.0
        ])),
        Value::Array(parts) if parts.len() == 2 => {
            let parts = parts
                .iter()
                .map(|part| float(part).unwrap_or_else(|| part.clone()));
            Some(parts.collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::as_zarrs_reads;

    #[test]
    fn other_types_are_read_as_numpy_reads_them() {
        for (dtype, stored, read) in [
            ("<i4", json!("0"), json!(0)),
            ("|u1", json!(" 255 "), json!(255)),
            ("<u8", json!("18446744073709551615"), json!(u64::MAX)),
            ("<i8", json!("-9223372036854775808"), json!(i64::MIN)),
            ("<i2", json!(0.0), json!(0)),
            ("<i2", json!(-3.0), json!(-3)),
            ("<i2", json!(-0.0), json!(0)),
            ("<i2", json!(true), json!(1)),
            ("|b1", json!(0), json!(false)),
            ("|b1", json!(1.0), json!(true)),
            ("<f4", json!("1.5"), json!(1.5)),
            ("<f8", json!("nan"), json!("NaN")),
            ("<f8", json!("-inf"), json!("-Infinity")),
            ("<f8", json!(false), json!(0.0)),
            ("<c8", json!(null), json!([0.0, 0.0])),
            ("<c16", json!(2), json!([2, 0.0])),
            ("<c16", json!(["1", "nan"]), json!([1.0, "NaN"])),
            ("<U5", json!(null), json!("")),
            ("<M8[ns]", json!(null), json!("NaT")),
        ] {
            assert_eq!(
                as_zarrs_reads(dtype, &stored),
                Some(read),
                "{dtype} {stored}"
            );
        }
    }

    #[test]
    fn other_values_stay() {
        for (dtype, stored) in [
            ("<i4", json!(0)),
            ("<i4", json!(null)),
            ("<i4", json!(1.5)),
            ("<i4", json!("1.5")),
            ("<i4", json!(1e300)),
            ("<f4", json!(0)),
            ("<f4", json!("NaN")),
            ("<f4", json!("0x7fc00000")),
            ("<f4", json!("no number")),
            ("<c8", json!([0.0, 0.0])),
            ("<c8", json!([0.0])),
            ("|b1", json!("true")),
            ("<U5", json!("a")),
            ("<U5", json!(0)),
            ("<m8[s]", json!("7")),
            ("|S5", json!(null)),
            ("|O", json!(0)),
            ("", json!(0)),
            ("<é", Value::Null),
        ] {
            assert_eq!(as_zarrs_reads(dtype, &stored), None, "{dtype} {stored}");
        }
    }
}
