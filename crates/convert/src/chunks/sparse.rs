//! Reads regions in which few chunks are stored, and requests only the stored ones.

use zarrs::array::{Array, ArrayBytes, ArrayError, ArraySubset};
use zarrs_codec::{CodecError, CodecOptions, update_array_bytes};

use super::Chunks;
use super::known::Known;
use crate::open::Store;

/// A region is read chunk by chunk if at most one in this many of its chunks is stored.
const ONE_OF: u128 = 4;

impl Chunks {
    /// Reads `region` of `array`, the array whose chunks were listed.
    ///
    /// # Errors
    /// The errors of zarrs.
    pub fn read(
        &self,
        array: &Array<Store>,
        region: &ArraySubset,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'static>, ArrayError> {
        match &self.known {
            Some(known) if !array.data_type().is_optional() => known.read(array, region, options),
            _ => array.retrieve_array_subset_opt(region, options),
        }
    }
}

impl Known {
    fn read(
        &self,
        array: &Array<Store>,
        region: &ArraySubset,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'static>, ArrayError> {
        let all = || array.retrieve_array_subset_opt(region, options);
        let Some(bounds) = array.chunks_in_array_subset(region)? else {
            return all();
        };
        let bounds = bounds.to_ranges();
        let count = bounds.iter().fold(1_u128, |count, range| {
            count.saturating_mul(u128::from(range.end.saturating_sub(range.start)))
        });
        let most = usize::try_from(count / ONE_OF).unwrap_or(usize::MAX);
        if self.within(&bounds).nth(most).is_some() {
            return all();
        }
        let data_type = array.data_type();
        let fill_value = array.fill_value();
        let filled = ArrayBytes::new_fill_value(data_type, region.num_elements(), fill_value);
        let mut bytes = filled.map_err(CodecError::from)?;
        for chunk in self.within(&bounds) {
            let part = array.chunk_subset(&chunk)?.overlap(region)?;
            let elements: ArrayBytes<'static> = array.retrieve_array_subset_opt(&part, options)?;
            let within = part.relative_to(region.start())?;
            let size = data_type.size();
            bytes = update_array_bytes(bytes, region.shape(), &within, &elements, size)?;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArraySubset, data_type};
    use zarrs_codec::CodecOptions;
    use zarrs_cuda_testing::Rng;
    use zarrs_storage::store::MemoryStore;

    use super::super::known::Known;
    use crate::open::{Place, Store};

    /// The same elements as with a request for each chunk.
    #[test]
    fn regions_with_few_chunks() {
        let mut rng = Rng(11);
        for case in 0..200 {
            let rank = rng.below(4);
            let shape: Vec<u64> = (0..rank).map(|_| 1 + rng.below(30)).collect();
            let chunk: Vec<u64> = (0..rank).map(|_| 1 + rng.below(4)).collect();
            let store: Arc<Store> = Arc::new(MemoryStore::new());
            let array = match case % 2 {
                0 => ArrayBuilder::new(shape.clone(), chunk, data_type::uint8(), 7_u8),
                _ => ArrayBuilder::new(shape.clone(), chunk, data_type::string(), "aa"),
            };
            let array: Array<Store> = array.build(store, "/").unwrap();
            let place: Place = "somewhere".parse().unwrap();
            let mut known = Known::none_of(&place, &array).unwrap();
            let grid = ArraySubset::new_with_shape(array.chunk_grid_shape().to_vec());
            for indices in &grid.indices() {
                if !rng.one_in(6) {
                    continue;
                }
                let subset = array.chunk_subset(&indices).unwrap();
                let value = u8::try_from(rng.below(200)).unwrap();
                if case % 2 == 0 {
                    let elements = vec![value; subset.num_elements_usize()];
                    array.store_chunk(&indices, elements).unwrap();
                } else {
                    let mut elements = vec![String::new(); subset.num_elements_usize()];
                    elements[0] = value.to_string();
                    array.store_chunk(&indices, elements).unwrap();
                }
                known.add(&indices);
            }
            for _ in 0..10 {
                let ranges: Vec<_> = shape
                    .iter()
                    .map(|&extent| {
                        let start = rng.below(extent);
                        start..start + 1 + rng.below(extent - start)
                    })
                    .collect();
                let region = ArraySubset::new_with_ranges(&ranges);
                let read = known.read(&array, &region, &CodecOptions::default());
                let expected: ArrayBytes<'static> = array.retrieve_array_subset(&region).unwrap();
                assert_eq!(read.unwrap(), expected, "{shape:?} {ranges:?}");
            }
        }
    }
}
