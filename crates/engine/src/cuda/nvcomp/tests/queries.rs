//! Queries of the library before there is a batch.

use super::*;

#[test]
fn it_can_be_shared() {
    fn shared<T: std::fmt::Debug + Send + Sync + 'static>() {}
    shared::<Nvcomp>();
    shared::<Compressor>();
    shared::<Decompressor>();
}

/// Returns the temporary memory that the stand-in needs.
fn temp(chunks: usize, max_chunk_bytes: usize, total_bytes: usize) -> usize {
    chunks * (max_chunk_bytes / 4 + 99) + total_bytes / 8 + 13
}

#[test]
fn requirements_are_what_the_library_says() {
    let six = Alignments {
        input: 4,
        output: 8,
        temp: 16,
    };
    let five = Alignments {
        input: 2,
        output: 16,
        temp: 32,
    };
    for (library, alignments) in [(StandIn::Six, six), (StandIn::Five, five)] {
        let nvcomp = open(library);
        for format in FORMATS {
            let compressor = nvcomp.compressor(format).unwrap();
            let decompressor = nvcomp.decompressor(format).unwrap();
            assert_eq!(compressor.alignments(), alignments);
            assert_eq!(decompressor.alignments(), alignments);
            for (chunks, max_chunk_bytes, total_bytes) in
                [(1, 1, 1), (1024, 65_536, 65_536 * 1024), (7, 4097, 12_345)]
            {
                let expected = Requirements {
                    chunks,
                    max_chunk_bytes,
                    total_bytes,
                    alignments,
                    max_output: compressor.max_output(max_chunk_bytes).unwrap(),
                    temp: temp(chunks, max_chunk_bytes, total_bytes),
                };
                let found = compressor.requirements(chunks, max_chunk_bytes, total_bytes);
                assert_eq!(found.unwrap(), expected);
                assert!(expected.max_output > max_chunk_bytes);
                let expected = Requirements {
                    max_output: max_chunk_bytes,
                    ..expected
                };
                let found = decompressor.requirements(chunks, max_chunk_bytes, total_bytes);
                assert_eq!(found.unwrap(), expected);
            }
            assert_eq!(compressor.requirements(0, 0, 0).unwrap().temp, 0);
            assert_eq!(decompressor.requirements(0, 100, 0).unwrap().temp, 0);
        }
    }
}

#[test]
fn documented_limits_are_kept() {
    let nvcomp = open(StandIn::Six);
    for (format, largest, decompressed) in [
        (Format::Zstd, 16_000_000, (1 << 31) - 1),
        (Format::Deflate { algorithm: 2 }, 65_536, (1 << 32) - 1),
        (Format::Lz4, 16_777_216, (1 << 32) - 1),
    ] {
        assert_eq!(format.largest_chunk(), largest);
        assert_eq!(format.largest_decompressed(), decompressed);
        let compressor = nvcomp.compressor(format).unwrap();
        compressor.requirements(3, largest, 3 * largest).unwrap();
        compressor.max_output(largest).unwrap();
        let expected = format!(
            "nvCOMP may compress {format} chunks of at most {largest} bytes, and not of {}",
            largest + 1
        );
        let refused = compressor.requirements(3, largest + 1, 3).unwrap_err();
        assert_eq!(refused, expected);
        assert_eq!(compressor.max_output(largest + 1).unwrap_err(), expected);

        let decompressor = nvcomp.decompressor(format).unwrap();
        let refused = decompressor.requirements(1, decompressed + 1, 1);
        let expected = format!(
            "nvCOMP may decompress {format} chunks of at most {decompressed} bytes, and not of {}",
            decompressed + 1
        );
        assert_eq!(refused.unwrap_err(), expected);
    }
}

#[test]
fn impossible_batches_are_refused() {
    let nvcomp = open(StandIn::Six);
    let compressor = nvcomp.compressor(Format::Lz4).unwrap();
    let decompressor = nvcomp.decompressor(Format::Lz4).unwrap();
    for (chunks, max_chunk_bytes, total_bytes) in
        [(3, 100, 301), (1, 0, 0), (0, 100, 1), (usize::MAX, 2, 2)]
    {
        for (verb, refused) in [
            (
                "compress",
                compressor.requirements(chunks, max_chunk_bytes, total_bytes),
            ),
            (
                "decompress",
                decompressor.requirements(chunks, max_chunk_bytes, total_bytes),
            ),
        ] {
            assert_eq!(
                refused.unwrap_err(),
                format!(
                    "cannot {verb} {total_bytes} bytes in {chunks} lz4 chunks of at most \
                     {max_chunk_bytes} bytes"
                )
            );
        }
    }
}

#[test]
fn an_algorithm_that_is_not_there_is_named() {
    let nvcomp = open(StandIn::Six);
    for algorithm in [-1, 6] {
        let refused = nvcomp.compressor(Format::Deflate { algorithm });
        assert_eq!(
            refused.unwrap_err(),
            format!(
                "nvCOMP 6.0.0 does not tell the alignments that it needs to compress deflate \
                 (algorithm {algorithm}): status 11: no such option"
            )
        );
    }
}

#[test]
fn an_absent_function_costs_its_format_only() {
    let nvcomp = open(StandIn::Incomplete);
    assert_eq!(
        nvcomp.compressor(Format::Lz4).unwrap_err(),
        "nvCOMP 6.0.0 has no function nvcompBatchedLZ4CompressGetMaxOutputChunkSize"
    );
    let deflate = Format::Deflate { algorithm: 1 };
    assert_eq!(
        nvcomp.decompressor(deflate).unwrap_err(),
        "nvCOMP 6.0.0 has no function nvcompBatchedDeflateDecompressAsync"
    );
    nvcomp.compressor(Format::Zstd).unwrap();
    nvcomp.compressor(deflate).unwrap();
    nvcomp.decompressor(Format::Zstd).unwrap();
    nvcomp.decompressor(Format::Lz4).unwrap();
}

#[test]
fn zstd_is_unknown_without_a_device() {
    let nvcomp = open(StandIn::NoDevice);
    let zstd = nvcomp.compressor(Format::Zstd).unwrap();
    assert!(zstd.max_output(65_536).unwrap() > 65_536);
    assert_eq!(
        zstd.requirements(10, 65_536, 655_360).unwrap_err(),
        "nvCOMP 6.0.0 does not tell how much temporary memory it needs to compress zstd: status \
         1000: no device (unknown until a device is there)"
    );
    let lz4 = nvcomp.compressor(Format::Lz4).unwrap();
    lz4.requirements(10, 65_536, 655_360).unwrap();
    let zstd = nvcomp.decompressor(Format::Zstd).unwrap();
    zstd.requirements(10, 65_536, 655_360).unwrap();
}

#[test]
fn texts_of_statuses_are_optional() {
    assert_eq!(describe(None, 17), "status 17");
    let strings = open(StandIn::Six).status_string;
    assert_eq!(describe(strings, 17), "status 17: not aligned");
}
