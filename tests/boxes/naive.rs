//! A naive array of bytes, and memory with elements in any layout.

use zarrs::array::ArraySubset;
use zarrs_cuda_testing::Rng;

/// An array in memory, in C order.
#[derive(Clone, Debug)]
pub(crate) struct Naive {
    pub(crate) shape: Vec<u64>,
    pub(crate) size: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Naive {
    pub(crate) fn new(shape: &[u64], fill: &[u8]) -> Self {
        let len = shape.iter().product::<u64>() as usize;
        Self {
            shape: shape.to_vec(),
            size: fill.len(),
            bytes: fill.repeat(len),
        }
    }

    /// Writes the elements of a box, given in C order.
    pub(crate) fn write(&mut self, subset: &ArraySubset, elements: &[u8]) {
        let mut elements = elements.chunks(self.size);
        for at in zarrs_cuda_testing::all_indices(subset.shape()) {
            let mut offset = 0;
            for (axis, index) in at.iter().enumerate() {
                offset = offset * self.shape[axis] + subset.start()[axis] + index;
            }
            let offset = offset as usize * self.size;
            let element = elements.next().unwrap();
            self.bytes[offset..offset + self.size].copy_from_slice(element);
        }
        assert!(elements.next().is_none());
    }
}

/// Memory with the elements of a box.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    /// The strides in bytes, or `None` for C order.
    pub(crate) strides: Option<Vec<usize>>,
    /// The elements of the box, in C order.
    pub(crate) elements: Vec<u8>,
}

impl Memory {
    /// Makes memory for a box of `shape`, each of whose elements `element` makes.
    pub(crate) fn new(
        shape: &[u64],
        size: usize,
        rng: &mut Rng,
        mut element: impl FnMut(&mut Rng) -> Vec<u8>,
    ) -> Self {
        let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
        let count: usize = shape.iter().product();
        let mut of = |rng: &mut Rng, count: usize| -> Vec<u8> {
            (0..count).flat_map(|_| element(rng)).collect()
        };
        if rng.one_in(2) {
            let bytes = of(rng, count);
            return Self {
                elements: bytes.clone(),
                bytes,
                strides: None,
            };
        }
        // Axes in any order, with gaps, or the same elements again and again.
        let (mut strides, mut span) = (vec![0; shape.len()], 1);
        for axis in rng.permutation(shape.len()) {
            if rng.one_in(8) {
                continue;
            }
            strides[axis] = if rng.one_in(2) {
                span
            } else {
                span + rng.below(3) as usize
            };
            span += strides[axis] * shape[axis].saturating_sub(1);
        }
        let bytes = of(rng, span);
        let mut elements = Vec::new();
        for number in 0..count {
            let (mut rest, mut at) = (number, 0);
            for axis in (0..shape.len()).rev() {
                at += rest % shape[axis] * strides[axis];
                rest /= shape[axis];
            }
            elements.extend_from_slice(&bytes[at * size..(at + 1) * size]);
        }
        let strides = strides.iter().map(|stride| stride * size).collect();
        Self {
            bytes,
            strides: Some(strides),
            elements,
        }
    }

    pub(crate) fn input(&self) -> zarrs_cuda::writer::Input<'_> {
        match &self.strides {
            None => zarrs_cuda::writer::Input::contiguous(&self.bytes),
            Some(strides) => zarrs_cuda::writer::Input::strided(&self.bytes, strides),
        }
    }
}
