//! A progress bar that follows a writer.

use std::time::Duration;

use indicatif::ProgressBar;
use zarrs_storage::ReadableWritableStorageTraits;

use super::{ArrayWriterBuilder, Progress};

impl<TStorage> ArrayWriterBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Let `bar` follow the writer, after each stored shard: an [`on_progress`](Self::on_progress)
    /// callback, in place of any other.
    ///
    /// Its position is the number of bytes that were appended, its message their average rate since the
    /// bar was made (or [reset](ProgressBar::reset_elapsed)), how many batches wait to be encoded, and
    /// the ratio of compression. Its length and its style are the caller's: a template with
    /// `{binary_bytes}` and `{msg}` shows both. It is not finished when the writer is.
    ///
    /// Shards are stored in bursts; call [`Progress::show_on`] for a bar that moves between them.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use zarrs::array::{ArrayBuilder, data_type};
    /// # use zarrs_cuda::CudaShardingCodecBuilder;
    /// use indicatif::{ProgressBar, ProgressStyle};
    /// use zarrs_cuda::writer::ArrayWriter;
    ///
    /// # let codec = CudaShardingCodecBuilder::new(vec![4.try_into()?; 3], &data_type::uint16()).build_arc()?;
    /// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
    /// # let array = ArrayBuilder::new(vec![0, 16, 16], vec![8, 8, 8], data_type::uint16(), 0_u16)
    /// #     .array_to_bytes_codec(codec)
    /// #     .build(store, "/array")?;
    /// # array.store_metadata()?;
    /// # let frames: Vec<Vec<u16>> = (1..=20).map(|n| vec![n; 16 * 16]).collect();
    /// let bar = ProgressBar::new(20 * 16 * 16 * 2); // bytes; `no_length` if that is not known
    /// bar.set_style(ProgressStyle::with_template("{wide_bar} {binary_bytes} {msg}")?);
    ///
    /// let mut writer = ArrayWriter::builder(&array)
    ///     .progress_bar(bar.clone())
    ///     .build()?;
    /// for frame in &frames {
    ///     writer.append(frame)?;
    /// }
    /// writer.finish()?;
    /// assert_eq!(bar.position(), 20 * 16 * 16 * 2);
    /// bar.finish();
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn progress_bar(self, bar: ProgressBar) -> Self {
        self.on_progress(move |progress| progress.show_on(&bar))
    }
}

impl Progress {
    /// Let `bar` show this: see [`ArrayWriterBuilder::progress_bar`].
    pub fn show_on(&self, bar: &ProgressBar) {
        bar.set_message(message(self, bar.elapsed()));
        bar.set_position(self.appended_bytes);
    }
}

fn message(progress: &Progress, elapsed: Duration) -> String {
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let rate = progress.appended_bytes as f64 / 1e9 / elapsed.as_secs_f64().max(1e-9);
    let ratio = match progress.ratio() {
        Some(ratio) => format!("ratio {ratio:.2}"),
        None => "nothing stored yet".to_string(),
    };
    format!(
        "{rate:.2} GB/s, {} batches waiting, {ratio}",
        progress.batches_waiting
    )
}
