//! Shards as objects of a store: replaced by compact ones, recovered, and looked at.
