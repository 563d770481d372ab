//! Whole shards: decoded at once, decoded to a part of a larger output, and decoded by zarrs.

use arbitrary::{Result, Unstructured};

use crate::case::Case;
use crate::harm::harmed;
use crate::memory::limited;

/// Decodes any bytes as a shard of any chain.
pub fn whole_shard(input: &[u8]) {
    let _too_short = judge(&mut Unstructured::new(input));
}

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let Some((case, ours, encoded)) = Case::with_shard(u)? else {
        return Ok(());
    };
    let harmed = harmed(u, &case, &encoded)?;
    let decoded = limited(case.most_memory(harmed.len()), "decode", || {
        case.decoded(&ours, &harmed)
    });
    let shown = || format!("{harmed:?} as {}, {:?}", case.shards.json(), case.shards);
    if harmed == encoded {
        assert_eq!(decoded.as_ref(), Ok(&case.elements), "{}", shown());
    }
    if let Ok(decoded) = &decoded {
        assert_eq!(decoded.len(), case.elements.len(), "{}", shown());
    }
    if decoded.is_ok() || !case.is_dangerous_for_zarrs() {
        let by_zarrs = case.decoded_by_zarrs(&harmed);
        match (&decoded, &by_zarrs) {
            (Ok(decoded), Ok(by_zarrs)) => assert_eq!(decoded, by_zarrs, "{}", shown()),
            (Err(_), Err(_)) => {}
            _ => panic!("ours {decoded:?}, zarrs {by_zarrs:?}: {}", shown()),
        }
    }
    Ok(())
}
