#![doc = include_str!("guide/links.md")]
#![doc = include_str!("guide/pictures/shard.txt")]
#![doc = include_str!("../docs/guide/README.md")]
#![allow(
    clippy::doc_markdown,
    reason = "prose, which spells names of other projects as they do"
)]
// The pages are the files in `docs`, which GitHub renders with relative links. Here `links.md` comes
// first: of two definitions of a link the first one counts, so rustdoc links to modules and items.
// Rustdoc names that file when an example fails, and counts its lines before those of the page.

/// A page of the guide, with its examples as doctests, and the pictures that the page shows.
macro_rules! page {
    ($name:ident, $file:literal $(, $picture:literal)*) => {
        #[doc = include_str!("guide/links.md")]
        $(#[doc = include_str!($picture)])*
        #[doc = include_str!($file)]
        pub mod $name {}
    };
}

page!(start, "../docs/guide/start.md");
page!(migrate, "../docs/guide/migrate.md");
page!(write, "../docs/guide/write.md");
page!(stream, "../docs/guide/stream.md");
page!(pyramids, "../docs/guide/pyramids.md");
page!(read, "../docs/guide/read.md");
page!(training, "../docs/guide/training.md");
page!(share, "../docs/guide/share.md");
page!(maintain, "../docs/guide/maintain.md");
page!(gpu, "../docs/guide/gpu.md");
page!(many_machines, "../docs/guide/many_machines.md");
page!(tuning, "../docs/guide/tuning.md");
page!(memory, "../docs/guide/memory.md");
page!(troubleshooting, "../docs/guide/troubleshooting.md");

/// Promises, limits, protocols and measurements.
pub mod reference {
    page!(
        updates,
        "../docs/reference/updates.md",
        "guide/pictures/update.txt"
    );
    page!(
        streaming,
        "../docs/reference/streaming.md",
        "guide/pictures/epochs.txt"
    );
    page!(
        sparse_shards,
        "../docs/reference/sparse_shards.md",
        "guide/pictures/frames.txt"
    );
    page!(sharded_store, "../docs/reference/sharded_store.md");
    page!(correctness, "../docs/reference/correctness.md");
    // Pages of rustdoc have no files beside them: `charts.md` has the chart in itself.
    page!(
        performance,
        "../docs/reference/performance.md",
        "guide/charts.md"
    );
    page!(glossary, "../docs/reference/glossary.md");
}

/// The examples of the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
