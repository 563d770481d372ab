//! Frames that claim more than the array's metadata justify, and frames that keep such a claim. The
//! chains are those that the engines do not run as a whole.

use serde_json::Value;

use super::*;

/// A claimed length: far more than the tests allow, but less than the address space.
const CLAIM: u32 = 0x7000_0000;

/// The decoded length of a bomb.
const BOMB: usize = 64 << 20;

/// Encodes `bytes` with `codecs`.
fn encoded(codecs: &[Value], bytes: &[u8]) -> Vec<u8> {
    let metadata: Vec<_> = codecs
        .iter()
        .map(|codec| serde_json::from_value(codec.clone()).unwrap())
        .collect();
    let chain = CodecChain::from_metadata(&metadata).unwrap();
    let encoded = chain.encode(
        ArrayBytes::from(bytes),
        &chunk_shape(&[bytes.len() as u64]),
        &data_type::uint8(),
        &FillValue::from(0_u8),
        &CodecOptions::default(),
    );
    encoded.unwrap().into_owned()
}

/// Encodes bytes with `codec`.
fn compressed(codec: &Value, bytes: &[u8]) -> Vec<u8> {
    encoded(&[codecs::bytes("little"), codec.clone()], bytes)
}

/// A zstd frame of one block of eight zeros that claims to have `len` bytes.
fn zstd_claim(len: u64) -> Vec<u8> {
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0xE0];
    frame.extend(len.to_le_bytes());
    frame.extend([(8 << 3) | (1 << 1) | 1, 0, 0, 0]);
    frame
}

/// Frames of `codec` that claim too much, or hold too much.
fn hostile_frames(codec: &Value) -> Vec<(String, Vec<u8>)> {
    let mut frames = vec![("a bomb", compressed(codec, &vec![0; BOMB]))];
    match codec["name"].as_str().unwrap() {
        "blosc" => {
            let mut frame = compressed(codec, &[0; 4096]);
            frame[4..8].copy_from_slice(&CLAIM.to_le_bytes());
            frames.push(("nbytes", frame));
        }
        "zstd" => {
            let claim = zstd_claim(CLAIM.into());
            let small = compressed(codec, &[0; 8]);
            let skippable = [0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3];
            frames.push(("a content size", claim.clone()));
            frames.push(("a second frame", [&small[..], &claim].concat()));
            frames.push(("after a skippable frame", [&skippable[..], &claim].concat()));
            // A window of 128 MiB, and no content size.
            frames.push((
                "a window",
                vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, 17 << 3, 8, 0],
            ));
        }
        _ => {}
    }
    frames
        .into_iter()
        .map(|(what, frame)| (format!("{} with {what}", codec["name"]), frame))
        .collect()
}

/// Compressors whose codec or frames tell the decoded length.
fn compressors() -> Vec<Value> {
    vec![
        codecs::blosc("lz4", 5, "shuffle", 2),
        codecs::blosc("zstd", 5, "noshuffle", 2),
        codecs::zstd(3, false),
        codecs::gzip(6),
        codecs::zlib(),
    ]
}

/// Replaces the third of the four subchunks of `target`.
fn with_subchunk(target: &Target, subchunk: Vec<u8>) -> Vec<u8> {
    let index = target.shards.index;
    let mut subchunks = index.subchunks(&target.encoded, 4);
    subchunks[2] = Some(subchunk);
    let subchunks: Vec<_> = subchunks.into_iter().map(|bytes| (0, bytes)).collect();
    index.shard(&subchunks)
}

#[test]
fn of_compressors() {
    let mut attacker = Attacker::new();
    let little = || codecs::bytes("little");
    let index = IndexLayout::default();
    for compressor in compressors() {
        // The codecs before and after the compressor.
        for (name, before, behind) in [
            (
                "sharding",
                vec![codecs::sharding(&[1, 2], &[little()])],
                vec![],
            ),
            (
                "packbits",
                vec![codecs::packbits(), codecs::crc32c()],
                vec![],
            ),
            (
                "adler32",
                vec![little(), codecs::adler32(), codecs::crc32c()],
                vec![],
            ),
            ("behind", vec![little()], vec![codecs::adler32()]),
            ("xor", vec![little(), codecs::xor()], vec![codecs::xor()]),
            (
                "gzip",
                vec![little(), codecs::gzip(6), codecs::adler32()],
                vec![],
            ),
        ] {
            let chain = [&before[..], std::slice::from_ref(&compressor), &behind[..]].concat();
            let target = target(name, chain, false, index);
            attacker.attack(&target, &target.encoded, Effort::Thorough, "unharmed");
            for (what, frame) in hostile_frames(&compressor) {
                let subchunk = encoded(&[&[little()], &behind[..]].concat(), &frame);
                let hostile = with_subchunk(&target, subchunk);
                let errors = attacker.errors;
                attacker.attack(&target, &hostile, Effort::Thorough, &what);
                assert_eq!(attacker.errors, errors + 1, "{name}: {what}");
            }
        }
    }
}

/// A file of pcodec, in parts.
struct Pcodec {
    magic: Vec<u8>,
    /// The version of the chunk format.
    version: Vec<u8>,
    /// The only chunk: the type of its numbers, their count in three bytes, its metadata, and the
    /// numbers.
    chunk: Vec<u8>,
}

impl Pcodec {
    /// The number of numbers in the file, encoded as the library does.
    fn hint(count: u32) -> Vec<u8> {
        let word: u64 = 31 | u64::from(count) << 6;
        word.to_le_bytes()[..5].to_vec()
    }

    fn of(file: &[u8]) -> Self {
        let (magic, rest) = file.split_at(6);
        let hint = (6 + 1 + usize::from(rest[0] & 63)).div_ceil(8);
        let (version, rest) = rest[hint..].split_at(2);
        let (&end, chunk) = rest.split_last().unwrap();
        assert_eq!(end, 0);
        Self {
            magic: magic.to_vec(),
            version: version.to_vec(),
            chunk: chunk.to_vec(),
        }
    }

    fn file(&self, hint: u32, chunks: &[&[u8]]) -> Vec<u8> {
        [
            &self.magic,
            &Self::hint(hint),
            &self.version,
            &chunks.concat(),
            &[0][..],
        ]
        .concat()
    }
}

#[test]
fn of_pcodec() {
    let mut attacker = Attacker::new();
    let index = IndexLayout::default();
    for chain in [
        vec![codecs::pcodec()],
        vec![codecs::pcodec(), codecs::adler32()],
    ] {
        let behind = [&[codecs::bytes("little")], &chain[1..]].concat();
        let target = target("pcodec", chain.clone(), false, index);
        attacker.attack(&target, &target.encoded, Effort::Thorough, "unharmed");
        assert_eq!(attacker.errors, 0, "{chain:?}");

        // Chunks of the four numbers of a subchunk, and of many numbers.
        let file = |count: u64| {
            let codec =
                CodecChain::from_metadata(&[serde_json::from_value(chain[0].clone()).unwrap()]);
            let encoded = codec.unwrap().encode(
                ArrayBytes::from(
                    (0..count)
                        .flat_map(|n| [u8::from(n % 7 == 0), 0])
                        .collect::<Vec<_>>(),
                ),
                &chunk_shape(&[count]),
                &data_type::uint16(),
                &FillValue::from(0_u16),
                &CodecOptions::default(),
            );
            encoded.unwrap().into_owned()
        };
        let small = Pcodec::of(&file(4));
        let with = |position: usize, bytes: &[u8]| {
            let mut chunk = small.chunk.clone();
            chunk[position..position + bytes.len()].copy_from_slice(bytes);
            chunk
        };
        let many = with(1, &[0xFF; 3]);
        let dictionary = with(4, &(4_u32 | 0x1FF_FFFF << 4).to_le_bytes());
        let mut files = vec![
            ("a bomb", file(BOMB as u64 / 2)),
            ("a hint, and no chunk", small.file(CLAIM, &[])),
            ("a chunk", small.file(4, &[&many])),
            ("a second chunk", small.file(4, &[&small.chunk, &many])),
            ("a dictionary", small.file(4, &[&dictionary])),
        ];
        // The largest window that the format allows, and no bins.
        let back = [&small.chunk[..4], &[0x20, 0x1F], &[0; 60]].concat();
        files.push(("a window", small.file(4, &[&back])));
        for (what, file) in files {
            let hostile = with_subchunk(&target, encoded(&behind, &file));
            let errors = attacker.errors;
            attacker.attack(&target, &hostile, Effort::Thorough, what);
            assert_eq!(attacker.errors, errors + 1, "{chain:?}: {what}");
        }
        attacker.errors = 0;

        // The hint itself does not matter.
        let hinted = Pcodec::of(&{
            let subchunks = index.subchunks(&target.encoded, 4);
            let plain = CodecChain::from_metadata(
                &behind
                    .iter()
                    .map(|c| serde_json::from_value(c.clone()).unwrap())
                    .collect::<Vec<_>>(),
            );
            let stored = subchunks[2].clone().unwrap();
            let len = stored.len() as u64 - if behind.len() > 1 { 4 } else { 0 };
            let decoded = plain.unwrap().decode(
                stored.into(),
                &chunk_shape(&[len]),
                &data_type::uint8(),
                &FillValue::from(0_u8),
                &CodecOptions::default(),
            );
            decoded.unwrap().into_fixed().unwrap().into_owned()
        });
        let file = hinted.file(CLAIM, &[&hinted.chunk]);
        let data = attacker.data;
        let hostile = with_subchunk(&target, encoded(&behind, &file));
        attacker.attack(&target, &hostile, Effort::Thorough, "a hint");
        assert_eq!(attacker.data, data + 1);
    }
}

/// Valid frames of other encoders, which zarrs' codecs can read as well.
#[test]
fn legal_frames() {
    let mut attacker = Attacker::new();
    let little = || codecs::bytes("little");
    let index = IndexLayout::default();
    let zstd_of = |content: &[u8]| {
        let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, 11 << 3];
        let header = u32::try_from(content.len() << 3).unwrap() | 1;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(content);
        frame
    };
    for (name, compressor) in [
        ("zstd", codecs::zstd(3, false)),
        ("gzip", codecs::gzip(6)),
        ("zlib", codecs::zlib()),
        ("blosc", codecs::blosc("lz4", 5, "shuffle", 2)),
    ] {
        let chain = vec![little(), codecs::adler32(), compressor.clone()];
        let mut target = target(name, chain, true, index);
        let content = encoded(&[little(), codecs::adler32()], &target.elements_of(2));
        let frame = compressed(&compressor, &content);
        let mut frames = vec![("its own", frame.clone())];
        let (head, tail) = content.split_at(5);
        match name {
            "zstd" => {
                let skippable = [0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3];
                frames.push(("no content size", zstd_of(&content)));
                frames.push(("two frames", [zstd_of(head), zstd_of(tail)].concat()));
                frames.push(("skippable", [&skippable[..], &frame, &skippable].concat()));
            }
            "gzip" => {
                let mut named = frame.clone();
                named[3] = 8;
                named.splice(10..10, *b"name\0");
                frames.push(("with a name", named));
                frames.push(("something behind", [&frame[..], &[1, 2, 3]].concat()));
            }
            _ => {}
        }
        // The place of the subchunk does not change the elements, and no checksum covers it.
        target.covered = true;
        for (what, frame) in frames {
            let stock = target.shards.stock();
            let shard = with_subchunk(&target, frame);
            let options = CodecOptions::default();
            let read = target.shards.decode(stock.as_ref(), &shard, &options);
            assert_eq!(read.unwrap(), target.elements, "{name}: {what}");
            let data = attacker.data;
            attacker.attack(&target, &shard, Effort::Thorough, what);
            assert_eq!(attacker.data, data + 1, "{name}: {what}");
        }
    }
}

/// Elements without a fixed size, which zarrs' sharding decodes. The claim of a frame is limited by
/// the length of its bytes.
#[test]
fn of_elements_without_a_fixed_size() {
    let _attacker = Attacker::new();
    let little = || codecs::bytes("little");
    let claims = |codec: &Value| {
        let mut frames = hostile_frames(codec);
        frames.retain(|(what, _)| !what.contains("bomb"));
        frames
    };
    for compressor in [
        codecs::blosc("lz4", 5, "shuffle", 2),
        codecs::zstd(3, false),
    ] {
        for (what, frame) in claims(&compressor) {
            let strings = vec![json!({ "name": "vlen-utf8" }), compressor.clone()];
            Attacker::delegated(&data_type::string(), vec![], strings, &frame, &what, false);

            // The offsets of two elements. The second is as long as the claim.
            let vlen = json!({ "name": "zarrs.vlen", "configuration": {
                "index_codecs": [little()],
                "data_codecs": [little(), compressor.clone()],
                "index_data_type": "uint64",
                "index_location": "start",
            } });
            let words = [24, 0, 1, u64::from(CLAIM)].map(u64::to_le_bytes).concat();
            let subchunk = [words, frame.clone()].concat();
            Attacker::delegated(
                &data_type::string(),
                vec![],
                vec![vlen],
                &subchunk,
                &what,
                false,
            );
        }
        for (what, frame) in hostile_frames(&compressor) {
            let optional = json!({ "name": "zarrs.optional", "configuration": {
                "mask_codecs": [little()],
                "data_codecs": [little(), compressor.clone()],
            } });
            let data_type = data_type::uint16().to_optional();
            let words = [2, frame.len() as u64].map(u64::to_le_bytes).concat();
            let subchunk = [&words, &[1, 1][..], &frame].concat();
            Attacker::delegated(&data_type, vec![0], vec![optional], &subchunk, &what, true);
        }
    }
}

impl Target {
    /// The elements of subchunk `number` of four.
    fn elements_of(&self, number: usize) -> Vec<u8> {
        let size = self.shards.element_size();
        zarrs_cuda_testing::all_indices(&self.shards.shape)
            .zip(self.elements.chunks(size))
            .filter(|(indices, _)| self.shards.subchunk_of(indices) == number)
            .flat_map(|(_, element)| element.to_vec())
            .collect()
    }
}

impl Attacker {
    /// Reads shards of four elements in two subchunks. `subchunk` is the first encoded subchunk.
    fn delegated(
        data_type: &zarrs::array::DataType,
        fill: Vec<u8>,
        codecs: Vec<Value>,
        subchunk: &[u8],
        what: &str,
        is_bounded: bool,
    ) {
        let what = format!("{codecs:?}: {what}");
        let shards = Shards {
            shape: vec![4],
            subchunk: vec![2],
            data_type: data_type.clone(),
            fill,
            codecs,
            index: IndexLayout::default(),
        };
        let ours = shards.ours();
        let (shape, fill_value) = (shards.chunk_shape(), shards.fill_value());
        let hostile = shards
            .index
            .shard(&[(0, Some(subchunk.to_vec())), (0, None)]);
        let options = CodecOptions::default();
        let subset = ArraySubset::new_with_ranges(&[1..3]);
        allocations::reset();
        let whole = outcome(&what, || {
            ours.decode((&hostile).into(), &shape, data_type, &fill_value, &options)?;
            Ok(vec![])
        });
        assert!(whole.is_err(), "{what}: it is decoded");
        let input = Arc::new(hostile.clone());
        let part = outcome(&what, || {
            let decoder = ours.clone().partial_decoder(
                input.clone(),
                &shape,
                data_type,
                &fill_value,
                &options,
            )?;
            decoder.partial_decode(&subset, &options)?;
            Ok(vec![])
        });
        assert!(part.is_err(), "{what}: a part is decoded");
        let part = outcome(&what, || {
            futures::executor::block_on(async {
                let decoder = ours
                    .clone()
                    .async_partial_decoder(input.clone(), &shape, data_type, &fill_value, &options)
                    .await?;
                decoder.partial_decode(&subset, &options).await?;
                Ok(vec![])
            })
        });
        assert!(part.is_err(), "{what}: a part is decoded");
        // Recovery tries each subchunk, even for types that zarrs' sharding rejects.
        let format =
            zarrs_cuda::maintenance::ShardFormat::new(ours, shape, data_type.clone(), fill_value);
        let store = MemoryStore::new();
        let key = StoreKey::new("shard").unwrap();
        store.set(&key, hostile.clone().into()).unwrap();
        let recovery = zarrs_cuda::recover(&store, &key, &format.unwrap()).unwrap();
        let first = &recovery.subchunks[0];
        assert!(
            matches!(
                first,
                zarrs_cuda::maintenance::SubchunkState::Unreadable { .. }
            ),
            "{what}: {first:?}"
        );
        let largest = allocations::largest();
        // The largest expansion of these formats: 128 KiB for each block, whose header has 3 bytes.
        let format = if is_bounded { 0 } else { (128 << 10) / 3 };
        let limit = (16 + format) * hostile.len() + (1 << 20);
        assert!(largest <= limit, "{what}: an allocation of {largest} bytes");
    }
}

/// zarrs' codec panics on this level. An array with it among its inner codecs is an error.
#[test]
fn settings_on_which_a_codec_panics() {
    let mut bz2 = codecs::bz2();
    bz2["configuration"]["level"] = 0.into();
    let chain = [codecs::bytes("little"), bz2];
    for inner in [chain.to_vec(), vec![codecs::sharding(&[1, 1], &chain)]] {
        let sharding = codecs::sharding(&[2, 2], &inner);
        let configuration = serde_json::from_value(sharding["configuration"].clone()).unwrap();
        let made = CudaShardingCodec::new_with_configuration(
            &configuration,
            zarrs_cuda::Options::default(),
        );
        let error = made.unwrap_err().to_string();
        assert!(error.contains("range 1..=9"), "{error}");
    }
}

/// Which chains are rejected for untrusted data, and which codec the error names.
#[test]
fn untrusted_data() {
    let _attacker = Attacker::new();
    let little = || codecs::bytes("little");
    let zstd = || codecs::zstd(3, false);
    let options = CodecOptions::default();
    for (name, chain, refused) in [
        ("known", vec![little(), zstd()], None),
        ("foreign", vec![little(), codecs::adler32(), zstd()], None),
        (
            "zlib",
            vec![little(), codecs::zlib(), codecs::gzip(6)],
            None,
        ),
        ("pcodec", vec![codecs::pcodec()], None),
        ("packbits", vec![codecs::packbits(), zstd()], None),
        (
            "xor",
            vec![little(), codecs::xor(), codecs::shuffle(2)],
            None,
        ),
        (
            "nested",
            vec![codecs::sharding(&[1, 2], &[little(), zstd()]), zstd()],
            None,
        ),
        ("bz2", vec![little(), codecs::bz2()], Some("numcodecs.bz2")),
        (
            "nested bz2",
            vec![codecs::sharding(&[1, 2], &[little(), codecs::bz2()])],
            Some("numcodecs.bz2"),
        ),
        (
            "padding",
            vec![little(), codecs::padding()],
            Some("test.padding"),
        ),
    ] {
        let target = target(name, chain, false, IndexLayout::default());
        let Target { shards, ours, .. } = &target;
        let configuration = shards.configuration();
        let untrusted = zarrs_cuda::Options::default().with_untrusted_data(true);
        let made = CudaShardingCodec::new_with_configuration(&configuration, untrusted.clone());
        let changed = (**ours).clone().with_options(untrusted);
        for codec in [made.unwrap(), changed].map(Arc::new) {
            let whole = ArraySubset::new_with_shape(shards.shape.clone());
            let update = || {
                let value = Arc::new(Mutex::new(Some(target.encoded.clone())));
                let encoder = codec.clone().partial_encoder(
                    value.clone(),
                    &shards.chunk_shape(),
                    &shards.data_type,
                    &shards.fill_value(),
                    &options,
                )?;
                let element = ArrayBytes::from(shards.fill.clone());
                let first = ArraySubset::new_with_ranges(&[0..1, 0..1]);
                encoder.partial_encode(&first, &element, &options)?;
                Ok(target.elements.clone())
            };
            for (way, read) in [
                (
                    "decode",
                    shards.decode(codec.as_ref(), &target.encoded, &options),
                ),
                (
                    "into",
                    shards.decode_into(codec.clone(), &target.encoded, &options),
                ),
                (
                    "part",
                    shards.partial_decode(codec.clone(), &target.encoded, &whole, &options),
                ),
                (
                    "async part",
                    shards.async_partial_decode(codec.clone(), &target.encoded, &whole, &options),
                ),
                ("update", update()),
            ] {
                match refused {
                    None => assert_eq!(read.unwrap(), target.elements, "{name}: {way}"),
                    Some(blamed) => {
                        let error = read.unwrap_err().to_string();
                        assert!(error.contains(blamed), "{name}: {way}: {error}");
                        assert!(
                            error.contains("with_untrusted_data"),
                            "{name}: {way}: {error}"
                        );
                    }
                }
            }
            // Writing is allowed: the data are the application's own.
            let encoded = shards.encode(codec.as_ref(), &target.elements, &options);
            assert_eq!(encoded.unwrap(), target.encoded, "{name}");
        }
    }
}

/// The same for elements without a fixed size, in shards where nothing is stored.
#[test]
fn untrusted_strings() {
    let _attacker = Attacker::new();
    let vlen = || json!({ "name": "vlen-utf8" });
    let zstd = || codecs::zstd(3, false);
    for (chain, refused) in [
        (vec![vlen()], None),
        (vec![vlen(), codecs::adler32()], None),
        (vec![vlen(), zstd()], Some("zstd")),
        (vec![codecs::sharding(&[1], &[vlen()])], None),
        (
            vec![codecs::sharding(&[1], &[vlen()]), zstd()],
            Some("zstd"),
        ),
    ] {
        let shards = Shards {
            shape: vec![4],
            subchunk: vec![2],
            data_type: data_type::string(),
            fill: vec![],
            codecs: chain.clone(),
            index: IndexLayout::default(),
        };
        let untrusted = zarrs_cuda::Options::default().with_untrusted_data(true);
        let codec = CudaShardingCodec::new_with_configuration(&shards.configuration(), untrusted);
        let empty = shards.index.encode(&[EMPTY; 2]);
        let decoded = codec.unwrap().decode(
            empty.into(),
            &shards.chunk_shape(),
            &shards.data_type,
            &shards.fill_value(),
            &CodecOptions::default(),
        );
        let blamed = decoded.err().map(|error| error.to_string());
        match refused {
            None => assert_eq!(blamed, None, "{chain:?}"),
            Some(name) => assert!(blamed.is_some_and(|e| e.contains(name)), "{chain:?}"),
        }
    }
}

/// All subchunks share the same string. Two megabytes of such an index would ask for gigabytes.
#[test]
fn untrusted_strings_that_share_bytes() {
    let _attacker = Attacker::new();
    for depth in [0, 1] {
        let vlen = json!({ "name": "vlen-utf8" });
        let chain = match depth {
            0 => vlen,
            _ => codecs::sharding(&[1], &[vlen]),
        };
        let shards = Shards {
            shape: vec![4],
            subchunk: vec![2],
            data_type: data_type::string(),
            fill: vec![],
            codecs: vec![chain],
            index: IndexLayout::default(),
        };
        let decode = |encoded: Vec<u8>, untrusted| {
            let options = zarrs_cuda::Options::default().with_untrusted_data(untrusted);
            let codec = CudaShardingCodec::new_with_configuration(&shards.configuration(), options);
            let codec = Arc::new(codec.unwrap());
            let (shape, fill) = (shards.chunk_shape(), shards.fill_value());
            let options = CodecOptions::default();
            let whole = codec.decode(
                encoded.clone().into(),
                &shape,
                &shards.data_type,
                &fill,
                &options,
            );
            let part = codec
                .partial_decoder(
                    Arc::new(encoded),
                    &shape,
                    &shards.data_type,
                    &fill,
                    &options,
                )
                .and_then(|decoder| {
                    let all = ArraySubset::new_with_shape(vec![4]);
                    Ok(decoder.partial_decode(&all, &options)?.into_owned())
                });
            [whole.map(ArrayBytes::into_owned), part].map(|read| read.map_err(|e| e.to_string()))
        };
        let stock = shards.stock();
        let strings = ArrayBytes::new_vlen(
            b"one two ".repeat(4),
            vec![0, 8, 16, 24, 32].try_into().unwrap(),
        );
        let encoded = stock
            .encode(
                strings.unwrap(),
                &shards.chunk_shape(),
                &shards.data_type,
                &shards.fill_value(),
                &CodecOptions::default(),
            )
            .unwrap()
            .into_owned();
        for read in decode(encoded.clone(), true) {
            read.unwrap();
        }
        let entries = shards.index.entries(&encoded, 2);
        let shared = shards.index.replace(&encoded, &[entries[0], entries[0]]);
        for read in decode(shared.clone(), false) {
            read.unwrap();
        }
        for read in decode(shared, true) {
            let error = read.unwrap_err();
            assert!(error.contains("bytes in common"), "{error}");
        }
    }
}
