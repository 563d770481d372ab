//! Macros for stores over another store, which forward operations to that store.

/// Implements writing for `$type` by forwarding each call to the store in its field `$store`.
macro_rules! forward_writes {
    ($type:ty, $store:ident) => {
        impl zarrs_storage::WritableStorageTraits for $type {
            fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
                self.$store.set(key, value)
            }

            fn set_partial_many(
                &self,
                key: &StoreKey,
                parts: zarrs_storage::OffsetBytesIterator,
            ) -> Result<(), StorageError> {
                self.$store.set_partial_many(key, parts)
            }

            fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
                self.$store.erase(key)
            }

            fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
                self.$store.erase_prefix(prefix)
            }

            fn supports_set_partial(&self) -> bool {
                self.$store.supports_set_partial()
            }
        }
    };
}

/// Implements listing for `$type` by forwarding each call to the store in its field `$store`.
macro_rules! forward_listing {
    ($type:ty, $store:ident) => {
        impl zarrs_storage::ListableStorageTraits for $type {
            fn list(&self) -> Result<zarrs_storage::StoreKeys, StorageError> {
                self.$store.list()
            }

            fn list_prefix(
                &self,
                prefix: &StorePrefix,
            ) -> Result<zarrs_storage::StoreKeys, StorageError> {
                self.$store.list_prefix(prefix)
            }

            fn list_dir(
                &self,
                prefix: &StorePrefix,
            ) -> Result<zarrs_storage::StoreKeysPrefixes, StorageError> {
                self.$store.list_dir(prefix)
            }

            fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
                self.$store.size_prefix(prefix)
            }
        }
    };
}

pub(crate) use {forward_listing, forward_writes};
