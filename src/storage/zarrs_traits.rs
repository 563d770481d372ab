//! Implements zarrs' traits of stores for an adapter, over stores that block and over stores that are
//! awaited.

/// Implements zarrs' traits for an adapter `A<S>`: the traits of [`reads_and_writes`], and those that list.
///
/// Listings show the `view` of `self.$core`.
macro_rules! zarrs_traits {
    (
        $adapter:ident.$core:ident,
        reads: [$($reads:ident)+], [$($async_reads:ident)+],
        gets_parts: $gets_parts:literal $(,)?
    ) => {
        $crate::storage::zarrs_traits::reads_and_writes! {
            $adapter.$core,
            reads: [$($reads)+], [$($async_reads)+],
            gets_parts: $gets_parts,
        }

        const _: () = {
            #[cfg(feature = "async")]
            use zarrs_storage::{AsyncListableStorageTraits, AsyncReadableStorageTraits};
            use zarrs_storage::{
                ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKeys,
                StoreKeysPrefixes, StorePrefix,
            };

            use $crate::storage::listing;
            use $crate::store::now;

            impl<S> ListableStorageTraits for $adapter<S>
            where
                S: ReadableStorageTraits + ListableStorageTraits + ?Sized,
            {
                fn list(&self) -> Result<StoreKeys, StorageError> {
                    self.list_prefix(&StorePrefix::root())
                }

                fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
                    let store = &self.blocking();
                    now(listing::list_prefix(&self.$core.view(store), store, prefix))
                }

                fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
                    let store = &self.blocking();
                    now(listing::list_dir(&self.$core.view(store), store, prefix))
                }

                fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
                    let store = &self.blocking();
                    now(listing::size_prefix(&self.$core.view(store), store, prefix))
                }
            }

            #[cfg(feature = "async")]
            #[async_trait::async_trait]
            impl<S> AsyncListableStorageTraits for $adapter<S>
            where
                S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized,
            {
                async fn list(&self) -> Result<StoreKeys, StorageError> {
                    self.list_prefix(&StorePrefix::root()).await
                }

                async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
                    let store = &self.awaited();
                    listing::list_prefix(&self.$core.view(store), store, prefix).await
                }

                async fn list_dir(
                    &self,
                    prefix: &StorePrefix,
                ) -> Result<StoreKeysPrefixes, StorageError> {
                    let store = &self.awaited();
                    listing::list_dir(&self.$core.view(store), store, prefix).await
                }

                async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
                    let store = &self.awaited();
                    listing::size_prefix(&self.$core.view(store), store, prefix).await
                }
            }
        };
    };
}
pub(super) use zarrs_traits;

/// Implements zarrs' traits that read and write for an adapter `A<S>`.
///
/// `A::blocking` and `A::awaited` return the store, of one kind or the other. `self.$core` has an `async fn`
/// for each operation, over a store of either kind: `get`, `get_ranges`, `size`; `set`, `set_ranges`,
/// `erase_each`, `erase_prefix`. `reads` are the traits that `S` needs for reads, blocking and awaited.
/// `gets_parts` says whether a read of a part of a value reads less than the whole value, if `S` can do that.
macro_rules! reads_and_writes {
    (
        $adapter:ident.$core:ident,
        reads: [$($reads:ident)+], [$($async_reads:ident)+],
        gets_parts: $gets_parts:literal $(,)?
    ) => {
        const _: () = {
            #[cfg(feature = "async")]
            use futures_util::stream::{self, StreamExt};
            use bytes::Bytes;
            use zarrs_storage::byte_range::ByteRangeIterator;
            #[cfg(feature = "async")]
            use zarrs_storage::{
                AsyncListableStorageTraits, AsyncMaybeBytesIterator, AsyncReadableStorageTraits,
                AsyncWritableStorageTraits,
            };
            use zarrs_storage::{
                ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
                ReadableStorageTraits, StorageError, StoreKey, StorePrefix, WritableStorageTraits,
            };

            use $crate::store::now;

            impl<S: $($reads +)+ ?Sized> ReadableStorageTraits for $adapter<S> {
                fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
                    now(self.$core.get(&self.blocking(), key))
                }

                fn get_partial_many<'a>(
                    &'a self,
                    key: &StoreKey,
                    ranges: ByteRangeIterator<'a>,
                ) -> Result<MaybeBytesIterator<'a>, StorageError> {
                    let ranges = ranges.collect();
                    let values = now(self.$core.get_ranges(&self.blocking(), key, ranges))?;
                    Ok(values.map(|values| Box::new(values.into_iter().map(Ok)) as Box<_>))
                }

                fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
                    now(self.$core.size(&self.blocking(), key))
                }

                fn supports_get_partial(&self) -> bool {
                    $gets_parts && self.store.supports_get_partial()
                }
            }

            impl<S> WritableStorageTraits for $adapter<S>
            where
                S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
            {
                fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
                    now(self.$core.set(&self.blocking(), key, value))
                }

                fn set_partial_many(
                    &self,
                    key: &StoreKey,
                    parts: OffsetBytesIterator,
                ) -> Result<(), StorageError> {
                    now(self.$core.set_ranges(&self.blocking(), key, parts.collect()))
                }

                fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
                    self.erase_many(std::slice::from_ref(key))
                }

                fn erase_many(&self, keys: &[StoreKey]) -> Result<(), StorageError> {
                    now(self.$core.erase_each(&self.blocking(), keys))
                }

                fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
                    now(self.$core.erase_prefix(&self.blocking(), prefix))
                }

                /// Returns false: to write a part of a value, the adapter reads and writes all of it.
                fn supports_set_partial(&self) -> bool {
                    false
                }
            }

            #[cfg(feature = "async")]
            #[async_trait::async_trait]
            impl<S: $($async_reads +)+ ?Sized> AsyncReadableStorageTraits for $adapter<S> {
                async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
                    self.$core.get(&self.awaited(), key).await
                }

                async fn get_partial_many<'a>(
                    &'a self,
                    key: &StoreKey,
                    ranges: ByteRangeIterator<'a>,
                ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
                    let ranges = ranges.collect();
                    let values = self.$core.get_ranges(&self.awaited(), key, ranges).await?;
                    Ok(values.map(|values| stream::iter(values.into_iter().map(Ok)).boxed()))
                }

                async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
                    self.$core.size(&self.awaited(), key).await
                }

                fn supports_get_partial(&self) -> bool {
                    $gets_parts && self.store.supports_get_partial()
                }
            }

            #[cfg(feature = "async")]
            #[async_trait::async_trait]
            impl<S> AsyncWritableStorageTraits for $adapter<S>
            where
                S: AsyncReadableStorageTraits
                    + AsyncWritableStorageTraits
                    + AsyncListableStorageTraits
                    + ?Sized,
            {
                async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
                    self.$core.set(&self.awaited(), key, value).await
                }

                async fn set_partial_many<'a>(
                    &'a self,
                    key: &StoreKey,
                    parts: OffsetBytesIterator<'a>,
                ) -> Result<(), StorageError> {
                    let parts = parts.collect();
                    self.$core.set_ranges(&self.awaited(), key, parts).await
                }

                async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
                    self.erase_many(std::slice::from_ref(key)).await
                }

                async fn erase_many(&self, keys: &[StoreKey]) -> Result<(), StorageError> {
                    self.$core.erase_each(&self.awaited(), keys).await
                }

                async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
                    self.$core.erase_prefix(&self.awaited(), prefix).await
                }

                /// Returns false: to write a part of a value, the adapter reads and writes all of it.
                fn supports_set_partial(&self) -> bool {
                    false
                }
            }
        };
    };
}
pub(super) use reads_and_writes;
