//! Converts between numbers and coordinates of a grid in C order, in which the last axis is the fastest.

/// Returns the number in C order of `coordinates` in a grid with `counts` along its axes.
pub fn number(
    coordinates: impl IntoIterator<Item = usize>,
    counts: impl IntoIterator<Item = usize>,
) -> usize {
    std::iter::zip(coordinates, counts).fold(0, |number, (at, count)| number * count + at)
}

/// Returns the coordinates of `number` in a grid with `counts` along its axes, none of which is zero.
pub fn coordinates(mut number: usize, counts: &[usize]) -> Vec<usize> {
    let mut coordinates = vec![0; counts.len()];
    for (at, &count) in coordinates.iter_mut().zip(counts).rev() {
        *at = number % count;
        number /= count;
    }
    coordinates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_coordinates_are_inverse() {
        let counts = [2, 1, 3];
        let all: Vec<_> = (0..6).map(|number| coordinates(number, &counts)).collect();
        assert_eq!(all[..2], [[0, 0, 0], [0, 0, 1]]);
        assert_eq!(all[5], [1, 0, 2]);
        for (expected, coordinates) in all.into_iter().enumerate() {
            assert_eq!(number(coordinates, counts), expected);
        }
        assert_eq!((coordinates(0, &[]), number([], [])), (vec![], 0));
    }
}
