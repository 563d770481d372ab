//! The rules of the kernels' language, as the emulator keeps them.

#![allow(clippy::unwrap_used)]

use std::ffi::c_void;

use zarrs_cuda_simt::launch;

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

#[test]
fn scan() {
    let input: Vec<u32> = (0..256).map(|i| i * i).collect();
    let mut output = vec![0u32; 256];
    let (mut from, mut to) = (input.as_ptr(), output.as_mut_ptr());
    let args = [argument(&mut from), argument(&mut to)];
    // SAFETY: two arrays of 256 words, as the kernel takes.
    unsafe { launch("test_scan", 1, 256, &args) }.unwrap();
    let mut sum = 0;
    for (value, got) in input.iter().zip(&output) {
        sum += value;
        assert_eq!(*got, sum);
    }
}

#[test]
fn missing_lane() {
    // SAFETY: the kernel takes one word.
    let error = unsafe { launch("test_missing_lane", 1, 64, &[argument(&mut 40u32)]) }.unwrap_err();
    assert!(error.contains("ballot"), "{error}");
}
