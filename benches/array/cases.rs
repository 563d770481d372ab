//! The parts of the array that are read and written.

use zarrs::array::ArraySubset;
use zarrs_cuda_benches::microscopy::Microscopy;

/// The extent of the array along each axis, in elements.
pub(crate) const EDGE: u64 = 512;

/// Boxes of the array that one measurement reads.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) boxes: Vec<ArraySubset>,
}

impl Case {
    fn new(name: &'static str, starts: &[[u64; 3]], shape: [u64; 3]) -> Self {
        let of_box = |start: &[u64; 3]| {
            let ranges: Vec<_> = std::iter::zip(start, shape)
                .map(|(start, extent)| *start..start + extent)
                .collect();
            ArraySubset::new_with_ranges(&ranges)
        };
        Self {
            name,
            boxes: starts.iter().map(of_box).collect(),
        }
    }

    /// A case of these boxes, without a name.
    pub(crate) fn of(boxes: &[ArraySubset]) -> Self {
        Self {
            name: "",
            boxes: boxes.to_vec(),
        }
    }

    /// The number of elements in all boxes.
    pub(crate) fn num_elements(&self) -> u64 {
        self.boxes.iter().map(ArraySubset::num_elements).sum()
    }
}

/// All cases. The random boxes are the same in every run.
pub(crate) fn cases() -> Vec<Case> {
    let mut random = Microscopy::new();
    let boxes: Vec<[u64; 3]> = (0..64)
        .map(|_| [(); 3].map(|()| random.random() % (EDGE - 32 + 1)))
        .collect();
    vec![
        Case::new("whole", &[[0; 3]], [EDGE; 3]),
        Case::new("plane", &[[100, 0, 0]], [1, EDGE, EDGE]),
        Case::new("pencil", &[[0, 100, 200]], [EDGE, 1, 1]),
        Case::new("box", &[[100, 37, 11]], [256, 256, 256]),
        Case::new("random", &boxes, [32; 3]),
    ]
}

/// Returns the elements of `boxes`, box after box. `elements` are those of the array.
pub(crate) fn elements_of(elements: &[u16], boxes: &[ArraySubset]) -> Vec<u16> {
    let mut of_boxes = Vec::new();
    for subset in boxes {
        let [z, y, x] = [0, 1, 2].map(|axis| {
            let (start, extent) = (subset.start()[axis], subset.shape()[axis]);
            start as usize..(start + extent) as usize
        });
        let edge = EDGE as usize;
        for z in z {
            for y in y.clone() {
                let row = (z * edge + y) * edge;
                of_boxes.extend(&elements[row + x.start..row + x.end]);
            }
        }
    }
    of_boxes
}
