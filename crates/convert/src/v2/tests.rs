//! Encodings that are wrong, and configurations that nobody writes. `cli/tests/values` compares right ones with
//! numcodecs.

use std::borrow::Cow;

use liblzma::stream::{Action, Check, LzmaOptions, Stream};
use serde_json::{Value, json};
use zarrs::array::CodecOptions;
use zarrs::metadata::Configuration;
use zarrs_codec::BytesRepresentation;
use zarrs_cuda_testing::{Rng, effort};

use super::{OURS, filter};

fn configuration(json: &Value) -> Configuration {
    json.as_object().unwrap().clone().into()
}

/// Decodes with the codec `id`, as zarrs does.
fn decode(
    id: &'static str,
    json: &Value,
    encoded: &[u8],
    size: BytesRepresentation,
) -> Result<Vec<u8>, String> {
    let (_, create) = OURS.into_iter().find(|(name, _)| *name == id).unwrap();
    let configuration = configuration(json);
    let decoder = create(&configuration)?;
    let codec = filter::codec(id, configuration, decoder);
    codec
        .decode(Cow::Borrowed(encoded), &size, &CodecOptions::default())
        .map(Cow::into_owned)
        .map_err(|error| error.to_string())
}

fn compressed(mut stream: Stream, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 2 + 1000);
    stream.process_vec(bytes, &mut out, Action::Finish).unwrap();
    out
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let size = i32::try_from(bytes.len()).unwrap();
    let block = lz4_flex::block::compress(bytes);
    [&size.to_le_bytes()[..], &block].concat()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    compressed(Stream::new_easy_encoder(0, Check::Crc64).unwrap(), bytes)
}

fn alone(bytes: &[u8]) -> Vec<u8> {
    let options = LzmaOptions::new_preset(0).unwrap();
    compressed(Stream::new_lzma_encoder(&options).unwrap(), bytes)
}

/// Codecs, their configurations, and encodings of 96 bytes.
fn samples() -> Vec<(&'static str, Value, Vec<u8>)> {
    let bytes: Vec<u8> = (0..96).map(|byte| byte / 5).collect();
    let sum = crc32fast::hash(&bytes).to_le_bytes();
    let sum_c = crc32c::crc32c(&bytes).to_le_bytes();
    let bits = [&[0][..], &bytes[..12]].concat();
    let raw = json!({ "format": 3, "filters": [{ "id": 3, "dist": 4 }, { "id": 0x21 }] });
    vec![
        (
            "delta",
            json!({ "dtype": "<i4", "astype": "<i2" }),
            bytes[..48].to_vec(),
        ),
        (
            "delta",
            json!({ "dtype": ">f4", "astype": "<f8" }),
            [&bytes[..], &bytes].concat(),
        ),
        (
            "astype",
            json!({ "encode_dtype": "<f4", "decode_dtype": "<i4" }),
            bytes.clone(),
        ),
        (
            "quantize",
            json!({ "digits": 1, "dtype": "<f8", "astype": "<f4" }),
            bytes[..48].to_vec(),
        ),
        (
            "fixedscaleoffset",
            json!({ "scale": 10, "offset": 3, "dtype": "<f4", "astype": "u1" }),
            bytes[..24].to_vec(),
        ),
        ("bitround", json!({ "keepbits": 3 }), bytes.clone()),
        ("packbits", json!({}), bits),
        ("crc32", json!({}), [&sum[..], &bytes].concat()),
        ("crc32c", json!({}), [&bytes[..], &sum_c].concat()),
        ("lz4", json!({ "acceleration": 1 }), lz4(&bytes)),
        ("lzma", json!({ "format": 1 }), xz(&bytes)),
        ("lzma", json!({ "format": 0 }), alone(&bytes)),
        ("lzma", json!({ "format": 2 }), alone(&bytes)),
        ("lzma", raw, xz(&bytes)),
    ]
}

#[test]
fn wrong_bytes_are_errors_of_bounded_size() {
    let is_right = |(id, json, encoded): &(&'static str, Value, Vec<u8>)| {
        decode(id, json, encoded, BytesRepresentation::FixedSize(96)).is_ok()
    };
    let right = samples().iter().filter(|sample| is_right(sample)).count();
    assert_eq!(right, samples().len() - 1, "all but the raw stream");

    for seed in effort::seeds(300) {
        let mut rng = Rng(seed);
        for (id, json, mut encoded) in samples() {
            for _ in 0..=rng.below(3) {
                let at = usize::try_from(rng.below(encoded.len() as u64 + 1)).unwrap();
                match rng.below(4) {
                    0 => encoded.truncate(at),
                    1 => encoded.insert(at, rng.byte()),
                    2 => encoded.extend((0..at).map(|_| rng.byte())),
                    _ => encoded
                        .iter_mut()
                        .skip(at)
                        .take(1)
                        .for_each(|byte| *byte = rng.byte()),
                }
            }
            for (size, most) in [
                (BytesRepresentation::FixedSize(96), 96),
                (BytesRepresentation::BoundedSize(100), 100),
                (BytesRepresentation::UnboundedSize, 1 << 20),
            ] {
                if let Ok(decoded) = decode(id, &json, &encoded, size) {
                    assert!(decoded.len() <= most, "{id} {json}: {}", decoded.len());
                    let is_fixed = matches!(size, BytesRepresentation::FixedSize(_));
                    assert!(!is_fixed || decoded.len() == most, "{id} {json}");
                }
            }
        }
    }
}

#[test]
fn bombs_are_not_unpacked() {
    let zeros = vec![0; 8 << 20];
    for (id, json, bomb) in [
        ("lz4", json!({}), lz4(&zeros)),
        ("lzma", json!({}), xz(&zeros)),
        ("lzma", json!({ "format": 2 }), alone(&zeros)),
    ] {
        let known = BytesRepresentation::FixedSize(1000);
        let error = decode(id, &json, &bomb, known).unwrap_err();
        assert!(error.contains("1000"), "{error}");
    }
    // Headers that promise more than their bytes can hold.
    let header = [&i32::MAX.to_le_bytes()[..], &[0; 20]].concat();
    let error = decode(
        "lz4",
        &json!({}),
        &header,
        BytesRepresentation::UnboundedSize,
    )
    .unwrap_err();
    assert!(error.contains("does not decode to 2147483647"), "{error}");
    // A dictionary of 4 GiB in the header of a stream.
    let mut header = alone(&[1, 2, 3]);
    header[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
    let size = BytesRepresentation::FixedSize(3);
    let error = decode("lzma", &json!({ "format": 2 }), &header, size).unwrap_err();
    assert!(error.contains("dictionary"), "{error}");
}

#[test]
fn errors_say_what_is_wrong() {
    for (id, json, encoded, wrong) in [
        (
            "crc32",
            json!({}),
            vec![1, 2, 3],
            "a checksum alone has 4 bytes",
        ),
        (
            "crc32",
            json!({}),
            vec![1, 0, 0, 0, 0, 0],
            "the stored checksum is 0x00000001",
        ),
        ("packbits", json!({}), vec![], "padding bits is missing"),
        ("packbits", json!({}), vec![9, 1], "9 of 8 bits are padding"),
        (
            "packbits",
            json!({}),
            vec![1, 1],
            "decodes to 7 bytes, and not to 2",
        ),
        (
            "delta",
            json!({ "dtype": "<i4" }),
            vec![1, 2, 3],
            "3 bytes are no elements of i4",
        ),
        (
            "astype",
            json!({ "encode_dtype": "<f4", "decode_dtype": "|i1" }),
            [f32::NAN.to_le_bytes(), [0; 4]].concat(),
            "an element is NaN, which i1 cannot hold",
        ),
        (
            "lz4",
            json!({}),
            vec![1],
            "size of the decoded bytes is missing",
        ),
        ("lz4", json!({}), vec![255; 4], "its size is -1"),
        ("lzma", json!({}), xz(&[1, 2])[..40].to_vec(), "no end"),
        (
            "lzma",
            json!({}),
            [xz(&[1, 2]), vec![0; 4]].concat(),
            "4 bytes follow",
        ),
    ] {
        let error = decode(id, &json, &encoded, BytesRepresentation::FixedSize(2)).unwrap_err();
        assert!(error.contains(wrong), "{id}: {error}");
    }
}

#[test]
fn nonsense_is_refused() {
    for (id, json) in [
        ("delta", json!({})),
        ("delta", json!({ "dtype": "<c8" })),
        ("delta", json!({ "dtype": 4 })),
        ("quantize", json!({ "dtype": "<i4", "digits": 1 })),
        ("astype", json!({ "encode_dtype": "<i4" })),
        (
            "fixedscaleoffset",
            json!({ "scale": "1", "offset": 0, "dtype": "u1" }),
        ),
        ("fixedscaleoffset", json!({ "scale": 1, "offset": 0 })),
        ("crc32", json!({ "location": "middle" })),
        ("lzma", json!({ "format": 4 })),
        ("lzma", json!({ "format": "1" })),
        ("lzma", json!({ "format": 3 })),
        ("lzma", json!({ "format": 3, "filters": [] })),
        ("lzma", json!({ "format": 3, "filters": [{ "id": 99 }] })),
        (
            "lzma",
            json!({ "format": 3, "filters": [{ "id": 3, "dist": 257 }] }),
        ),
        (
            "lzma",
            json!({ "format": 3, "filters": [{ "id": 3 }, { "id": 3 }] }),
        ),
        (
            "lzma",
            json!({ "format": 3, "filters": [{ "id": 0x21, "dict_size": u32::MAX }] }),
        ),
        (
            "lzma",
            json!({ "format": 3, "filters": [{ "id": 0x21, "preset": 10 }] }),
        ),
        (
            "lzma",
            json!({ "format": 3, "filters": [{ "id": 0x4000_0000_0000_0001_u64, "lc": 9 }] }),
        ),
    ] {
        let (_, create) = OURS.into_iter().find(|(name, _)| *name == id).unwrap();
        create(&configuration(&json))
            .map(|_| ())
            .expect_err(&json.to_string());
    }
}
