//! Microscopy-like data: a smooth field with noise in the lowest bits.

/// A source of volumes and of their random numbers.
pub struct Microscopy(u64);

impl Microscopy {
    /// A source that returns the same volumes in every run.
    pub fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    /// The next random number.
    pub fn random(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns the little-endian uint16 elements of a box of `shape` that starts at `start` of the
    /// field. They are in C order, with `noise` random bits in each.
    pub fn volume(&mut self, start: [u64; 3], shape: [u64; 3], noise: u32) -> Vec<u8> {
        let along = |axis: usize, wave: fn(f64) -> f64, length: f64| -> Vec<f64> {
            (start[axis]..start[axis] + shape[axis])
                .map(|position| wave(position as f64 / length))
                .collect()
        };
        let z = along(0, f64::sin, 40.0);
        let y = along(1, f64::cos, 55.0);
        let x = along(2, f64::sin, 70.0);
        let mask = (1_u16 << noise) - 1;
        let mut data = Vec::with_capacity(z.len() * y.len() * x.len() * 2);
        for z in &z {
            for y in &y {
                for x in &x {
                    let field = (z + y + x).mul_add(800.0, 3000.0) as u16;
                    let value = (field & !mask) | (self.random() as u16 & mask);
                    data.extend_from_slice(&value.to_le_bytes());
                }
            }
        }
        data
    }
}
