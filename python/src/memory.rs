//! The memory of numpy arrays. Python keeps the arrays alive while Rust uses them without the GIL.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use zarrs_cuda::reader::Output;
use zarrs_cuda::writer::Input;

use crate::error::Error;

/// The memory of the elements of a numpy array.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    pub(crate) shape: Vec<usize>,
    /// The distance from one element to the next along each axis, in bytes.
    pub(crate) strides: Vec<isize>,
    pub(crate) element_size: usize,
}

// SAFETY: the caller promises that the array outlives the call that uses this memory; numpy's own calls that
// release the GIL share memory between threads in the same way.
unsafe impl Send for Memory {}
// SAFETY: threads that share the memory use different elements.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns the memory of `array`, which must live longer than the returned value.
    pub(crate) fn of(array: &Bound<'_, PyUntypedArray>) -> Self {
        // SAFETY: `array` is a numpy array, and the caller holds it.
        let start = unsafe { (*array.as_array_ptr()).fields.data };
        Self {
            start: start.cast(),
            shape: array.shape().to_vec(),
            strides: array.strides().to_vec(),
            element_size: array.dtype().itemsize(),
        }
    }

    /// Returns a memory without elements, for a batch whose elements are in no numpy array.
    pub(crate) fn none() -> Self {
        Self {
            start: std::ptr::null_mut(),
            shape: Vec::new(),
            strides: Vec::new(),
            element_size: 0,
        }
    }

    /// Returns the memory of a C-contiguous array that the host cannot use, for the places of boxes alone.
    pub(crate) fn elsewhere(shape: &[usize], element_size: usize) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut step = element_size.cast_signed();
        for (stride, extent) in strides.iter_mut().zip(shape).rev() {
            *stride = step;
            step = step.saturating_mul(extent.cast_signed());
        }
        Self {
            start: std::ptr::null_mut(),
            shape: shape.to_vec(),
            strides,
            element_size,
        }
    }

    /// Returns an output for the box of `shape` elements that begins `offset` bytes behind the first element,
    /// and whose axes have `strides`. Returns `None` if an output cannot have such strides.
    pub(crate) fn output(
        &self,
        offset: isize,
        shape: &[usize],
        strides: &[isize],
    ) -> Option<Output<'_>> {
        let (span, steps) = self.span(shape, strides)?;
        // SAFETY: the box is inside the array, which was checked when the selection was read. No two boxes of
        // a batch have the same elements.
        Some(unsafe { Output::of_elements(self.start.wrapping_offset(offset), span, steps) })
    }

    /// Returns an input of the box of `shape` elements that begins `offset` bytes behind the first element, and
    /// whose axes have `strides`. Returns `None` if an input cannot have such strides.
    pub(crate) fn input(
        &self,
        offset: isize,
        shape: &[usize],
        strides: &[isize],
    ) -> Option<Input<'_>> {
        let (span, steps) = self.span(shape, strides)?;
        // SAFETY: the box is inside the array, which was checked when the selection was read, and the memory between
        // its elements is the array's, too.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.wrapping_offset(offset), span) };
        Some(Input::strided(bytes, &steps))
    }

    /// Returns the number of bytes from the first element of a box to the end of the last one, and the strides of
    /// the box. Returns `None` if a stride is negative.
    fn span(&self, shape: &[usize], strides: &[isize]) -> Option<(usize, Vec<usize>)> {
        let mut steps = Vec::with_capacity(strides.len());
        let mut span = self.element_size;
        for (&stride, &extent) in strides.iter().zip(shape) {
            let step = if extent > 1 {
                usize::try_from(stride).ok()?
            } else {
                0
            };
            span = span.checked_add(step.checked_mul(extent.saturating_sub(1))?)?;
            steps.push(step);
        }
        Some((if shape.contains(&0) { 0 } else { span }, steps))
    }

    /// Returns the bytes of the box of `shape` elements at `offset`, if they are contiguous and in C order.
    pub(crate) fn contiguous(
        &self,
        offset: isize,
        shape: &[usize],
        strides: &[isize],
    ) -> Option<&[u8]> {
        let mut len = self.element_size;
        for (&stride, &extent) in strides.iter().zip(shape).rev() {
            if extent > 1 && usize::try_from(stride) != Ok(len) {
                return None;
            }
            len = len.checked_mul(extent)?;
        }
        // SAFETY: the box is inside the array, and these bytes have the elements of the box only.
        Some(unsafe { std::slice::from_raw_parts(self.start.wrapping_offset(offset), len) })
    }

    /// Returns the bytes of all elements, which must be contiguous and in C order.
    pub(crate) fn bytes(&self) -> Result<&[u8], Error> {
        let bytes = self.contiguous(0, &self.shape, &self.strides);
        bytes.ok_or_else(|| Error::Value("the elements are not contiguous".to_owned()))
    }

    /// Copies the box at `offset` to another box of the same shape in `to`, whose first element is at byte
    /// `at` and whose axes have the strides `to_strides`. Uses up to `threads` threads of the current pool.
    pub(crate) fn copy_out(
        &self,
        (offset, strides): (isize, &[isize]),
        shape: &[usize],
        to: &mut [u8],
        (at, to_strides): (usize, &[isize]),
        threads: usize,
    ) {
        assert!(reaches(at, shape, to_strides, self.element_size) <= to.len());
        let from = Pointer(self.start.wrapping_offset(offset));
        let to = Pointer(to.as_mut_ptr().wrapping_add(at));
        copy(
            from,
            strides,
            to,
            to_strides,
            shape,
            self.element_size,
            threads,
        );
    }

    /// Copies a box of `from`, whose first element is at byte `at`, to the box at `offset`.
    pub(crate) fn copy_in(
        &self,
        (offset, strides): (isize, &[isize]),
        shape: &[usize],
        from: &[u8],
        (at, from_strides): (usize, &[isize]),
        threads: usize,
    ) {
        assert!(reaches(at, shape, from_strides, self.element_size) <= from.len());
        let to = Pointer(self.start.wrapping_offset(offset));
        let from = Pointer(from.as_ptr().wrapping_add(at).cast_mut());
        copy(
            from,
            from_strides,
            to,
            strides,
            shape,
            self.element_size,
            threads,
        );
    }

    /// Fills the box at `offset` with copies of `element`.
    pub(crate) fn fill(
        &self,
        (offset, strides): (isize, &[isize]),
        shape: &[usize],
        element: &[u8],
    ) {
        // The source has strides of 0, so that its one element is used for each element of the box.
        let still = vec![0; shape.len()];
        self.copy_in((offset, strides), shape, element, (0, &still), 1);
    }
}

/// Returns the offset of the byte behind the last element of a box.
fn reaches(at: usize, shape: &[usize], strides: &[isize], element_size: usize) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    let steps = strides.iter().zip(shape);
    let last = steps.fold(at, |last, (&stride, &extent)| {
        // A negative stride would leave the slice. It becomes a huge one, which the assertion of the caller
        // refuses.
        let stride = usize::try_from(stride).unwrap_or(usize::MAX);
        last.saturating_add(stride.saturating_mul(extent - 1))
    });
    last.saturating_add(element_size)
}

#[derive(Clone, Copy)]
struct Pointer(*mut u8);

// SAFETY: the memory is used under the conditions of `Memory`.
unsafe impl Send for Pointer {}
// SAFETY: the memory is used under the conditions of `Memory`.
unsafe impl Sync for Pointer {}

/// Copies the elements of a box between two places in memory, which may have different strides.
fn copy(
    from: Pointer,
    from_strides: &[isize],
    to: Pointer,
    to_strides: &[isize],
    shape: &[usize],
    element_size: usize,
    threads: usize,
) {
    /// The number of bytes below which one thread copies sooner than another thread wakes.
    const ALONE: usize = 1 << 20;
    if shape.contains(&0) {
        return;
    }
    let axes = axes(from_strides, to_strides, shape);
    let bytes = shape.iter().product::<usize>().saturating_mul(element_size);
    let Some((&(extent, from_step, to_step), inner)) = axes.split_first() else {
        // SAFETY: the box has one element, which is inside both places.
        unsafe { copy_axes(from.0, to.0, &[], element_size) };
        return;
    };
    let parts = threads.min(extent).min(bytes / ALONE).max(1);
    if parts == 1 {
        // SAFETY: the callers checked that both boxes are inside their memory.
        unsafe { copy_axes(from.0, to.0, &axes, element_size) };
        return;
    }
    let each = extent.div_ceil(parts * 4).max(1);
    (0..extent.div_ceil(each)).into_par_iter().for_each(|part| {
        // The closure captures whole `Pointer`s, which are `Sync`, and not the raw pointers in them.
        let (from, to) = (&from, &to);
        let first = part * each;
        let mut axes = vec![(each.min(extent - first), from_step, to_step)];
        axes.extend_from_slice(inner);
        let first = first.cast_signed();
        // SAFETY: no other thread copies this part of the boxes.
        unsafe {
            copy_axes(
                from.0.wrapping_offset(first * from_step),
                to.0.wrapping_offset(first * to_step),
                &axes,
                element_size,
            );
        }
    });
}

/// Returns the axes of a copy as `(extent, step from, step to)`. Axes of one element are left out. Axes whose
/// elements follow one another in both places are joined to one.
fn axes(from: &[isize], to: &[isize], shape: &[usize]) -> Vec<(usize, isize, isize)> {
    let mut axes: Vec<(usize, isize, isize)> = Vec::with_capacity(shape.len() + 1);
    for ((&extent, &from), &to) in shape.iter().zip(from).zip(to) {
        if extent == 1 {
            continue;
        }
        if let Some(last) = axes.last_mut() {
            let signed = extent.cast_signed();
            if last.1 == from * signed && last.2 == to * signed {
                *last = (last.0 * extent, from, to);
                continue;
            }
        }
        axes.push((extent, from, to));
    }
    axes
}

/// Copies the elements of a box with the given axes.
///
/// # Safety
/// All elements of both boxes are inside allocations that may be used, and do not overlap.
unsafe fn copy_axes(
    from: *mut u8,
    to: *mut u8,
    axes: &[(usize, isize, isize)],
    element_size: usize,
) {
    let step = element_size.cast_signed();
    match axes {
        // SAFETY: the caller promises that this element may be copied.
        [] => unsafe { std::ptr::copy_nonoverlapping(from, to, element_size) },
        // SAFETY: the caller promises it for all elements of the axis, which are contiguous in both places.
        &[(extent, a, b)] if a == step && b == step => unsafe {
            std::ptr::copy_nonoverlapping(from, to, extent * element_size);
        },
        // SAFETY: the caller promises it for all elements of the axis.
        &[(extent, a, b)] => unsafe {
            match element_size {
                1 => copy_elements::<1>(from, to, extent, a, b),
                2 => copy_elements::<2>(from, to, extent, a, b),
                4 => copy_elements::<4>(from, to, extent, a, b),
                8 => copy_elements::<8>(from, to, extent, a, b),
                _ => {
                    for n in 0..extent.cast_signed() {
                        let (from, to) = (from.wrapping_offset(n * a), to.wrapping_offset(n * b));
                        std::ptr::copy_nonoverlapping(from, to, element_size);
                    }
                }
            }
        },
        [(extent, a, b), inner @ ..] => {
            for n in 0..extent.cast_signed() {
                let (from, to) = (from.wrapping_offset(n * a), to.wrapping_offset(n * b));
                // SAFETY: the caller promises it for all elements, so also for this part of them.
                unsafe { copy_axes(from, to, inner, element_size) };
            }
        }
    }
}

/// # Safety
/// The condition of [`copy_axes`].
unsafe fn copy_elements<const N: usize>(
    from: *mut u8,
    to: *mut u8,
    extent: usize,
    a: isize,
    b: isize,
) {
    for n in 0..extent.cast_signed() {
        // SAFETY: the caller promises that the elements may be copied. Arrays of bytes need no alignment.
        unsafe {
            let element = from.wrapping_offset(n * a).cast::<[u8; N]>().read();
            to.wrapping_offset(n * b).cast::<[u8; N]>().write(element);
        }
    }
}

/// The bytes of an object with Python's buffer protocol.
pub(crate) struct Buffer(pyo3::buffer::PyBuffer<u8>);

impl Buffer {
    /// Returns the bytes of `object`.
    ///
    /// # Errors
    /// An exception, if `object` has no contiguous bytes.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = pyo3::buffer::PyBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(pyo3::exceptions::PyBufferError::new_err(
                "a value of the store is not contiguous in memory",
            ));
        }
        Ok(Self(buffer))
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        let len = self.0.len_bytes();
        if len == 0 {
            return &[];
        }
        // SAFETY: the buffer is held, is contiguous, and has `len` bytes.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), len) }
    }
}
