//! Memory of numpy arrays. Python keeps the arrays while Rust works, without the GIL.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use zarrs_cuda::reader::Output;

use crate::error::Error;

/// The elements of a numpy array.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    pub(crate) shape: Vec<usize>,
    /// In bytes.
    pub(crate) strides: Vec<isize>,
    pub(crate) element_size: usize,
}

// SAFETY: the array outlives the call that uses it, which is what its caller promises; numpy's own calls
// that release the GIL share memory between threads in the same way.
unsafe impl Send for Memory {}
// SAFETY: as above; different threads use different elements.
unsafe impl Sync for Memory {}

impl Memory {
    /// The elements of `array`, which lives longer than what is returned.
    pub(crate) fn of(array: &Bound<'_, PyUntypedArray>) -> Self {
        // SAFETY: a numpy array, which the caller holds.
        let start = unsafe { (*array.as_array_ptr()).fields.data };
        Self {
            start: start.cast(),
            shape: array.shape().to_vec(),
            strides: array.strides().to_vec(),
            element_size: array.dtype().itemsize(),
        }
    }

    /// No elements: what a batch is read with whose elements are elsewhere.
    pub(crate) fn none() -> Self {
        Self {
            start: std::ptr::null_mut(),
            shape: Vec::new(),
            strides: Vec::new(),
            element_size: 0,
        }
    }

    /// The box of `shape` elements that begins `offset` bytes behind the first element, whose axes have
    /// `strides`, as an output. `None` if a stride is not one that an output may have.
    pub(crate) fn output(
        &self,
        offset: isize,
        shape: &[usize],
        strides: &[isize],
    ) -> Option<Output<'_>> {
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
        // SAFETY: the box is inside the array, which was checked when the selection was read, and each box
        // of a batch has elements of its own.
        Some(unsafe { Output::of_elements(self.start.wrapping_offset(offset), span, steps) })
    }

    /// The box as above, if it is contiguous and in C order.
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
        // SAFETY: as above; the elements of the box are all there is in these bytes.
        Some(unsafe { std::slice::from_raw_parts(self.start.wrapping_offset(offset), len) })
    }

    /// All elements, which are contiguous and in C order.
    pub(crate) fn bytes(&self) -> Result<&[u8], Error> {
        let bytes = self.contiguous(0, &self.shape, &self.strides);
        bytes.ok_or_else(|| Error::Value("the elements are not contiguous".to_owned()))
    }

    /// Copies the box to `to`: to the box of the same shape whose first element is at byte `at`, and whose
    /// axes have the strides `to_strides`, on up to `threads` threads of the current pool.
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

    /// Copies the box of `from` whose first element is at byte `at` to the box of these elements.
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

    /// Fills the box with copies of `element`.
    pub(crate) fn fill(
        &self,
        (offset, strides): (isize, &[isize]),
        shape: &[usize],
        element: &[u8],
    ) {
        // The box of one row that is used again and again has no steps.
        let still = vec![0; shape.len()];
        self.copy_in((offset, strides), shape, element, (0, &still), 1);
    }
}

/// Behind which byte the last element of a box is.
fn reaches(at: usize, shape: &[usize], strides: &[isize], element_size: usize) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    let steps = strides.iter().zip(shape);
    let last = steps.fold(at, |last, (&stride, &extent)| {
        // A negative step would leave the slice: refused by the assertion.
        let stride = usize::try_from(stride).unwrap_or(usize::MAX);
        last.saturating_add(stride.saturating_mul(extent - 1))
    });
    last.saturating_add(element_size)
}

#[derive(Clone, Copy)]
struct Pointer(*mut u8);

// SAFETY: see `Memory`.
unsafe impl Send for Pointer {}
// SAFETY: see `Memory`.
unsafe impl Sync for Pointer {}

/// Copies the elements of a box, whose axes have other strides in both places.
fn copy(
    from: Pointer,
    from_strides: &[isize],
    to: Pointer,
    to_strides: &[isize],
    shape: &[usize],
    element_size: usize,
    threads: usize,
) {
    /// Fewer bytes than this are copied sooner than another thread is woken.
    const ALONE: usize = 1 << 20;
    if shape.contains(&0) {
        return;
    }
    let axes = axes(from_strides, to_strides, shape);
    let bytes = shape.iter().product::<usize>().saturating_mul(element_size);
    let Some((&(extent, from_step, to_step), inner)) = axes.split_first() else {
        // SAFETY: one element, inside both.
        unsafe { copy_axes(from.0, to.0, &[], element_size) };
        return;
    };
    let parts = threads.min(extent).min(bytes / ALONE).max(1);
    if parts == 1 {
        // SAFETY: the callers checked both boxes.
        unsafe { copy_axes(from.0, to.0, &axes, element_size) };
        return;
    }
    let each = extent.div_ceil(parts * 4).max(1);
    (0..extent.div_ceil(each)).into_par_iter().for_each(|part| {
        // Pointers as a whole: a closure would take their fields.
        let (from, to) = (&from, &to);
        let first = part * each;
        let mut axes = vec![(each.min(extent - first), from_step, to_step)];
        axes.extend_from_slice(inner);
        let first = first.cast_signed();
        // SAFETY: a part of the boxes, which no other part has.
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

/// The axes of a copy, `(extent, step from, step to)`, without those of one element. Axes that follow each
/// other in both places are one.
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

/// # Safety
/// All elements of both boxes may be used, and do not overlap.
unsafe fn copy_axes(
    from: *mut u8,
    to: *mut u8,
    axes: &[(usize, isize, isize)],
    element_size: usize,
) {
    let step = element_size.cast_signed();
    match axes {
        // SAFETY: as the caller promises.
        [] => unsafe { std::ptr::copy_nonoverlapping(from, to, element_size) },
        // SAFETY: as above: elements side by side.
        &[(extent, a, b)] if a == step && b == step => unsafe {
            std::ptr::copy_nonoverlapping(from, to, extent * element_size);
        },
        // SAFETY: as above.
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
                // SAFETY: as above.
                unsafe { copy_axes(from, to, inner, element_size) };
            }
        }
    }
}

/// # Safety
/// As for [`copy_axes`].
unsafe fn copy_elements<const N: usize>(
    from: *mut u8,
    to: *mut u8,
    extent: usize,
    a: isize,
    b: isize,
) {
    for n in 0..extent.cast_signed() {
        // SAFETY: as the caller promises; numpy's elements may be unaligned.
        unsafe {
            let element = from.wrapping_offset(n * a).cast::<[u8; N]>().read();
            to.wrapping_offset(n * b).cast::<[u8; N]>().write(element);
        }
    }
}

/// Bytes of an object with Python's buffer protocol.
pub(crate) struct Buffer(pyo3::buffer::PyBuffer<u8>);

impl Buffer {
    /// # Errors
    /// If the object has no contiguous bytes.
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
        // SAFETY: the buffer is held, contiguous and so long.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), len) }
    }
}
