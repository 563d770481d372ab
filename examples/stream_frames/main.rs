//! A simulated camera. Its frames become a sharded array in a directory while it runs.
//!
//! ```text
//! cargo run --release --example stream_frames -- OUT [OPTIONS]
//! ```
//!
//! Without `--rate` the camera waits for the disk. With `--rate`, and without `--wait`, it does
//! not: if there is no space, a frame is dropped and counted. Every frame starts with its number,
//! like the frames of scientific cameras, so the array shows which frames were dropped. Ctrl-C
//! stops the camera and finishes the array. The same command continues an array at its end.
//! `--help` lists the options.
//!
//! Other programs can open the array meanwhile, and see the finished frames.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and numbers for people"
)]

mod array;
mod camera;
mod codec;
mod job;
mod status;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zarrs_cuda::Options;
use zarrs_cuda::writer::{ArrayWriter, WriterError};

use crate::array::Recording;
use crate::camera::Camera;
use crate::job::{Job, USAGE};
use crate::status::Status;

/// The reasons for a missing report.
enum Stop {
    Usage(String),
    Failed(String),
}

impl From<String> for Stop {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<WriterError> for Stop {
    fn from(error: WriterError) -> Self {
        Self::Failed(error.to_string())
    }
}

fn main() -> ExitCode {
    let (message, code) = match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Stop::Usage(message)) => (format!("{message}\n\nTry --help."), 2),
        Err(Stop::Failed(message)) => (message, 1),
    };
    eprintln!("error: {message}");
    ExitCode::from(code)
}

fn run() -> Result<(), Stop> {
    let Some(job) = Job::from_arguments()? else {
        println!("{USAGE}");
        return Ok(());
    };
    stop_on_ctrl_c()?;
    // From here on, all sharded arrays use our codec.
    let mut options = Options::default().with_backend(job.backend);
    if let Some(memory) = job.memory {
        options = options.with_host_memory(memory);
    }
    let registration = zarrs_cuda::register(options).map_err(|error| error.to_string())?;

    let recording = Recording::open_or_create(&job)?;
    println!("{recording}");
    let mut writer = recording.writer()?;
    let mut camera = Camera::new(recording.frame_shape(), recording.frames());
    let mut status = Status::new(&job);
    let outcome = record(&job, &mut camera, &mut writer, &mut status);
    status.clear();
    // Even after an error, the accepted frames are kept.
    let report = match outcome {
        Ok(()) => writer.finish()?,
        Err(error) => {
            let kept = match writer.finish() {
                Ok(report) => format!("{} frames are finished", report.finished_slices),
                Err(error) => format!("and the array cannot be finished: {error}"),
            };
            return Err(Stop::Failed(format!("{error}\n{kept}")));
        }
    };
    drop(registration);
    println!("{}", status.summary(&report));
    Ok(())
}

/// Runs the camera, for the requested number of frames or until Ctrl-C.
fn record(
    job: &Job,
    camera: &mut Camera,
    writer: &mut ArrayWriter,
    status: &mut Status,
) -> Result<(), WriterError> {
    let start = Instant::now();
    let mut number = 0;
    while !is_stopped() && job.frames.is_none_or(|frames| number < frames) {
        let Some(rate) = job.rate else {
            writer.append(camera.frame())?;
            number += 1;
            status.frame_taken();
            status.show(writer);
            continue;
        };
        // The camera exposes even if there is no space.
        let due = start + Duration::from_secs_f64(number as f64 / rate);
        while let Some(rest) = due.checked_duration_since(Instant::now()) {
            if is_stopped() {
                return camera.deliver_rest(writer);
            }
            // Appends the rest of the last frame when there is space.
            camera.offer_rest(writer)?;
            thread::sleep(rest.min(Duration::from_millis(1)));
            status.show(writer);
        }
        number += 1;
        if job.wait {
            writer.append(camera.frame())?;
            status.frame_taken();
        } else if camera.offer_frame(writer)? {
            status.frame_taken();
        } else {
            status.frame_dropped();
        }
        status.show(writer);
    }
    camera.deliver_rest(writer)
}

static STOP: AtomicBool = AtomicBool::new(false);

fn stop_on_ctrl_c() -> Result<(), String> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nfinishing the array (Ctrl-C again: at once, and what is unfinished is lost)");
    })
    .map_err(|error| format!("cannot listen for Ctrl-C: {error}"))
}

fn is_stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}
