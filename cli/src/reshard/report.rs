//! The report of a run, for people and as JSON.

use std::time::Duration;

use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value, json};
use zarrs_cuda_convert::open::Place;

use super::copy::Copied;

pub(super) struct Done {
    pub(super) copied: Copied,
    pub(super) time: Duration,
    /// The noun for an object of IN, and the number of objects that IN has.
    pub(super) from: &'static str,
    pub(super) stored: u64,
    pub(super) to: &'static str,
    pub(super) codec_calls: u64,
    /// For people.
    pub(super) notes: Vec<String>,
}

impl Done {
    pub(super) fn text(&self, output: &Place) -> String {
        let Copied {
            written,
            kept,
            subchunks,
            bytes,
        } = self.copied;
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rounded for people"
        )]
        let rate = (bytes as f64 / self.time.as_secs_f64().max(1e-9)) as u64;
        let kept = match kept {
            0 => String::new(),
            _ => format!(", and {} were there already", counted(kept, self.to)),
        };
        let done = format!(
            "{output} is complete: {} out of {}{kept}\n\
             {}, {}, in {:.2} s, {}/s; {}",
            counted(written, self.to),
            counted(self.stored, self.from),
            counted(subchunks, "subchunk"),
            HumanBytes(bytes),
            self.time.as_secs_f64(),
            HumanBytes(rate),
            match self.codec_calls {
                0 => "no codec was called".to_string(),
                calls => format!("{} of codecs", counted(calls, "call")),
            },
        );
        let notes = self.notes.iter().map(|note| format!("\n{note}"));
        done + &notes.collect::<String>()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "input": { "objects": self.stored, "kind": self.from },
            "output": {
                "kind": self.to,
                "objects_written": self.copied.written,
                "objects_kept": self.copied.kept,
            },
            "subchunks": self.copied.subchunks,
            "bytes": self.copied.bytes,
            "seconds": self.time.as_secs_f64(),
            "codec_calls": self.codec_calls,
            "notes": self.notes,
        })
    }
}

/// `1 shard`, `2 shards`.
fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", HumanCount(count))
}
