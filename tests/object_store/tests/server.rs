//! Tests of the server: it is a valid store for zarrs, and it stops.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

use std::net::TcpStream;

use zarrs_cuda_object_store_tests::Server;
use zarrs_storage::{
    AsyncReadableStorageTraits, AsyncWritableStorageTraits, StoreKey, WritableStorageTraits,
    store_test,
};

#[tokio::test]
async fn it_stores_what_it_is_given() {
    let server = Server::start();
    let store = server.store();
    store_test::async_store_write(&store).await.unwrap();
    store_test::async_store_read(&store).await.unwrap();
    store_test::async_store_list(&store).await.unwrap();
    store_test::async_store_list_size(&store).await.unwrap();
    assert_eq!(
        std::fs::read(server.bucket().join("a/b")).unwrap(),
        [0, 1, 2, 3]
    );
    assert!(!store.supports_set_partial());
}

#[test]
fn it_stores_for_those_who_block() {
    let server = Server::start();
    let store = server.blocking_store();
    store_test::store_write(&store).unwrap();
    store_test::store_read(&store).unwrap();
    store_test::store_list(&store).unwrap();
    store_test::store_list_size(&store).unwrap();
}

#[test]
fn it_goes_down() {
    let server = Server::start();
    let (address, bucket) = (server.address(), server.bucket());
    let store = server.blocking_store();
    store
        .set(&StoreKey::new("a").unwrap(), vec![1].into())
        .unwrap();
    TcpStream::connect(address).unwrap();
    drop(server);
    TcpStream::connect(address).unwrap_err();
    assert!(!bucket.exists());
}

#[tokio::test]
async fn servers_do_not_know_each_other() {
    let (one, other) = (Server::start(), Server::start());
    let key = StoreKey::new("a").unwrap();
    one.store().set(&key, vec![1].into()).await.unwrap();
    assert_eq!(other.store().get(&key).await.unwrap(), None);
    assert_eq!(one.store().get(&key).await.unwrap(), Some(vec![1].into()));
}
