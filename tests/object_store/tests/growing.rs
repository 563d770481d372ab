//! Arrays in a server of S3 that several writers of boxes let grow, by requests with conditions.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

use std::sync::Arc;
use std::thread;

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs_cuda::objects::BlockingObjectStore;
use zarrs_cuda::writer::BoxWriter;
use zarrs_cuda_object_store_tests::Server;

const WRITERS: u16 = 3;
const ROWS: u16 = 8;

/// Each writer has a client of its own, and rows that are whole shards.
#[test]
fn no_growth_is_lost() {
    let server = Server::start();
    let array = || -> Array<BlockingObjectStore> {
        let store = BlockingObjectStore::new(Arc::new(server.objects()));
        let mut builder = ArrayBuilder::new(vec![0, 4], vec![2, 4], data_type::uint16(), 0_u16);
        builder.subchunk_shape(vec![1, 2]);
        builder.build(Arc::new(store), "/a").unwrap()
    };
    array().store_metadata().unwrap();
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let array = array();
            scope.spawn(move || {
                let writer = BoxWriter::builder(&array).with_conditional_writes(array.storage());
                let writer = writer.build().unwrap();
                for n in 0..ROWS {
                    let first = (n * WRITERS + number) * 2;
                    let rows = u64::from(first)..u64::from(first) + 2;
                    let end = rows.end;
                    let report = writer.write(&[rows, 0..4], &[first + 1; 8]).unwrap();
                    assert!(report.length >= Some(end));
                }
            });
        }
    });
    let now = Array::open(array().storage(), "/a").unwrap();
    assert_eq!(now.shape(), [u64::from(WRITERS * ROWS) * 2, 4]);
    let column: Vec<u16> = now
        .retrieve_array_subset(&[0..now.shape()[0], 3..4])
        .unwrap();
    let expected = (0..WRITERS * ROWS).flat_map(|n| [n * 2 + 1; 2]);
    assert_eq!(column, expected.collect::<Vec<u16>>());
}
