//! Which matrices of a dense model are streamed, and which stay in memory.

use super::weights::{Matrix, Weights};

/// The zone for streamed matrices is no smaller than this, if there is room: reads of flash are fast only when many go on.
const GOOD_ZONE: u64 = 32 << 20;
/// What a zone takes beside the largest matrix: the ends of reads, and a buffer for what is packed.
const ZONE_EXTRA: u64 = 512 << 10;

/// What is streamed of a dense model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Streamed {
    /// Names of the tensors, in the order in which they are used. That of embeddings whose rows are read one at a time
    /// comes first.
    pub(crate) names: Vec<String>,
    /// Whether there is such a table.
    pub(crate) table: bool,
    /// Bytes of memory for them.
    pub(crate) zone: u64,
    /// Bytes of all weights that stay in memory.
    pub(crate) resident: u64,
    /// Bytes that are read for a token, from the file or from a cache.
    pub(crate) read: u64,
    /// Bytes of the streamed tensors in the file.
    pub(crate) file_bytes: u64,
}

impl Streamed {
    /// Whether all matrices stay, so that no batch of tokens reads one.
    pub(crate) fn only_rows(&self) -> bool {
        self.names.len() == usize::from(self.table)
    }
}

/// What was said about streaming; `None`: as it is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StreamWishes {
    /// Bytes of memory for streamed weights.
    pub(crate) zone: Option<u64>,
    /// Bytes of weights that stay in memory.
    pub(crate) resident: Option<u64>,
}

/// Chooses what is streamed if weights and zone may take `budget` bytes. `None`: even the least is more.
///
/// The head stays in memory if that leaves room for a zone, as it is the largest matrix and is used for each token of an
/// answer. Of the others whole matrices stay, spread evenly over the layers, so that there is something to compute
/// while the next ones are read.
pub(crate) fn choose(weights: &Weights, budget: u64, wishes: StreamWishes) -> Option<Streamed> {
    let with = |head_stays: bool| {
        let streamable = weights.matrices.iter().filter(|matrix| !(head_stays && matrix.head));
        share(weights, &streamable.collect::<Vec<_>>(), budget, wishes)
    };
    with(true).or_else(|| with(false))
}

/// The least budget of [`choose`].
pub(crate) fn least(weights: &Weights) -> u64 {
    let floor = |head_stays: bool| {
        let streamable = weights.matrices.iter().filter(|matrix| !(head_stays && matrix.head));
        let streamable: Vec<_> = streamable.collect();
        fixed_bytes(weights, &streamable).saturating_add(floor_of(&streamable))
    };
    floor(true).min(floor(false))
}

/// `streamable` are those that need not stay.
fn share(
    weights: &Weights,
    streamable: &[&Matrix],
    budget: u64,
    wishes: StreamWishes,
) -> Option<Streamed> {
    let fixed = fixed_bytes(weights, streamable);
    let left = budget.checked_sub(fixed)?;
    let floor = floor_of(streamable);
    let heads = weights.matrices.len() - streamable.len();
    // What cannot be streamed stays whatever the wish is; a head could.
    let wished = wishes.resident.map(|resident| resident.checked_sub(fixed));
    if left < floor || (heads > 0 && wished == Some(None)) {
        return None;
    }
    let most = wished.map_or(u64::MAX, Option::unwrap_or_default);
    let whole: u64 = streamable.iter().map(|matrix| matrix.bytes).sum();
    let zone = match wishes.zone {
        Some(zone) => zone,
        // Only rows of a table are read then.
        None if whole <= most && whole.saturating_add(ZONE_EXTRA) <= left => ZONE_EXTRA,
        None => zone_of(streamable).clamp(floor, left),
    };
    let stay = stay_in_memory(streamable, left.saturating_sub(zone).min(most));
    let of = |stays: bool| {
        let chosen = streamable.iter().zip(&stay).filter(move |(_, stay)| **stay == stays);
        chosen.map(|(matrix, _)| *matrix).collect::<Vec<_>>()
    };
    let (kept, streamed) = (of(true), of(false));
    let (table, row) = weights.rows.as_ref().map_or((0, 0), |rows| (rows.bytes, rows.row_bytes));
    let rows = weights.rows.iter().map(|rows| rows.name.clone());
    let read: u64 = streamed.iter().map(|matrix| weights.read_bytes(matrix)).sum();
    let file_bytes: u64 = streamed.iter().map(|matrix| matrix.file_bytes).sum();
    // More than all of them would stay empty.
    let all = streamed.iter().map(|matrix| matrix.place).sum::<u64>() + ZONE_EXTRA;
    Some(Streamed {
        table: weights.rows.is_some(),
        names: rows.chain(streamed.iter().map(|matrix| matrix.name.clone())).collect(),
        zone: if wishes.zone.is_some() { zone } else { zone.min(all) },
        resident: fixed + kept.iter().map(|matrix| matrix.bytes).sum::<u64>(),
        read: read + row,
        file_bytes: file_bytes + table,
    })
}

/// Bytes of what stays in any case.
fn fixed_bytes(weights: &Weights, streamable: &[&Matrix]) -> u64 {
    let rows = weights.rows.as_ref().map_or(0, |rows| rows.bytes);
    let streamable: u64 = streamable.iter().map(|matrix| matrix.bytes).sum();
    weights.dense.saturating_sub(rows).saturating_sub(streamable)
}

fn largest(matrices: &[&Matrix]) -> u64 {
    matrices.iter().map(|matrix| matrix.place).max().unwrap_or(0)
}

fn floor_of(matrices: &[&Matrix]) -> u64 {
    match largest(matrices) {
        0 => 0,
        largest => largest + ZONE_EXTRA,
    }
}

/// A good zone: for the matrix that is used and the next one.
fn zone_of(matrices: &[&Matrix]) -> u64 {
    (2 * largest(matrices) + ZONE_EXTRA).max(GOOD_ZONE)
}

/// Which of the matrices stay, if they may take so many bytes.
fn stay_in_memory(matrices: &[&Matrix], bytes: u64) -> Vec<bool> {
    let all: u128 = matrices.iter().map(|matrix| u128::from(matrix.bytes)).sum();
    if all <= u128::from(bytes) {
        return vec![true; matrices.len()];
    }
    // Each matrix brings its share of the bytes; one stays when enough for it have come together.
    let mut saved = 0_u128;
    let mut stay: Vec<_> = matrices
        .iter()
        .map(|matrix| {
            let size = u128::from(matrix.bytes);
            saved += size * u128::from(bytes);
            let stays = saved >= size * all;
            if stays {
                saved -= size * all;
            }
            stays
        })
        .collect();
    // What is left over is less than the largest of them; a smaller one may fit.
    let kept = matrices.iter().zip(&stay).filter(|(_, stays)| **stays);
    let mut left = bytes - kept.map(|(matrix, _)| matrix.bytes).sum::<u64>();
    let mut others: Vec<_> = (0..matrices.len()).filter(|index| !stay[*index]).collect();
    others.sort_by_key(|index| std::cmp::Reverse(matrices[*index].bytes));
    for index in others {
        if matrices[index].bytes <= left {
            left -= matrices[index].bytes;
            stay[index] = true;
        }
    }
    stay
}

#[cfg(test)]
mod tests {
    use super::super::weights::Rows;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn matrix(name: String, mib: u64) -> Matrix {
        let bytes = mib * MIB;
        Matrix { name, bytes, place: bytes, file_bytes: bytes, head: false }
    }

    /// 40 layers of 10 + 20 MiB, a head of 100, a table of 100, and 10 MiB of small tensors.
    fn weights() -> Weights {
        let layer = |n| [matrix(format!("blk.{n}.a"), 10), matrix(format!("blk.{n}.b"), 20)];
        let mut matrices: Vec<_> = (0..40).flat_map(layer).collect();
        matrices.push(Matrix { head: true, ..matrix("head".to_owned(), 100) });
        Weights {
            dense: (40 * 30 + 100 + 100 + 10) * MIB,
            matrices,
            rows: Some(Rows { name: "table".to_owned(), bytes: 100 * MIB, row_bytes: 1000 }),
            ..Weights::default()
        }
    }

    fn streamed_bytes(choice: &Streamed) -> u64 {
        let weights = weights();
        let streamed = weights.matrices.iter().filter(|matrix| choice.names.contains(&matrix.name));
        streamed.map(|matrix| matrix.bytes).sum()
    }

    #[test]
    fn the_budget_is_kept_and_used() {
        let weights = weights();
        for mib in (120..1400).step_by(7) {
            let Some(choice) = choose(&weights, mib * MIB, StreamWishes::default()) else {
                assert!(mib * MIB < least(&weights), "{mib}");
                continue;
            };
            assert!(mib * MIB >= least(&weights), "{mib}");
            assert!(choice.resident + choice.zone <= mib * MIB, "{mib}");
            let streamed = streamed_bytes(&choice);
            assert_eq!(choice.resident + streamed, weights.dense - 100 * MIB, "{mib}");
            assert_eq!(choice.read, streamed + 1000);
            assert_eq!(choice.names[0], "table");
            assert_eq!(
                choice.names.len(),
                choice.names.iter().collect::<std::collections::HashSet<_>>().len()
            );
            if mib >= 240 {
                assert!(!choice.names.contains(&"head".to_owned()), "{mib}");
            }
            // No matrix that is streamed would still fit.
            let smallest = weights.matrices.iter().filter(|one| choice.names.contains(&one.name));
            let smallest = smallest.map(|matrix| matrix.bytes).min().unwrap_or(u64::MAX);
            assert!(mib * MIB - choice.resident - choice.zone < smallest, "{mib}");
        }
    }

    #[test]
    fn only_the_table_is_read_by_row_if_all_else_fits() {
        let weights = weights();
        let all = weights.dense - 100 * MIB;
        let enough = all + ZONE_EXTRA;
        for budget in [enough, enough + MIB, enough + 99 * MIB] {
            let choice = choose(&weights, budget, StreamWishes::default()).unwrap();
            assert_eq!(choice.names, ["table"]);
            assert!(choice.only_rows());
            assert_eq!((choice.resident, choice.zone, choice.read), (all, ZONE_EXTRA, 1000));
        }
        let choice = choose(&weights, enough - 1, StreamWishes::default()).unwrap();
        assert!(choice.names.len() > 1 && !choice.only_rows());
        assert!(choice.zone >= GOOD_ZONE || choice.zone >= streamed_bytes(&choice));
    }

    #[test]
    fn from_a_cache_packed_bytes_are_read() {
        let mut weights = weights();
        for matrix in &mut weights.matrices {
            matrix.place += 1000;
        }
        let budget = 300 * MIB;
        let plain = choose(&weights, budget, StreamWishes::default()).unwrap();
        weights.packed = true;
        let packed = choose(&weights, budget, StreamWishes::default()).unwrap();
        let matrices = packed.names.len() as u64 - 1;
        assert_eq!(packed, Streamed { read: plain.read + matrices * 1000, ..plain });
    }

    #[test]
    fn what_stays_is_spread_over_the_layers() {
        let weights = weights();
        // Half of the layers' matrices.
        let choice = choose(&weights, (110 + 600 + 41) * MIB, StreamWishes::default()).unwrap();
        for part in 0..8 {
            let layers = part * 5..part * 5 + 5;
            let names = layers.flat_map(|n| [format!("blk.{n}.a"), format!("blk.{n}.b")]);
            let streamed = names.filter(|name| choice.names.contains(name));
            let mib: u64 = streamed.map(|name| if name.ends_with('a') { 10 } else { 20 }).sum();
            assert!((50..=100).contains(&mib), "{part}: {mib} of 150 MiB");
        }
        let order: Vec<_> = weights.matrices.iter().map(|matrix| &matrix.name).collect();
        let place = |name| order.iter().position(|other| *other == name);
        assert!(choice.names[1..].is_sorted_by_key(place));
    }

    #[test]
    fn with_little_the_head_is_streamed_too() {
        let weights = weights();
        assert_eq!(least(&weights), 110 * MIB + ZONE_EXTRA);
        let choice = choose(&weights, 111 * MIB, StreamWishes::default()).unwrap();
        assert_eq!(choice.names.last().map(String::as_str), Some("head"));
        assert_eq!(choice.resident, 10 * MIB);
        assert!(choose(&weights, 110 * MIB, StreamWishes::default()).is_none());
    }

    #[test]
    fn wishes_are_kept_where_they_can_be() {
        let weights = weights();
        let zone = |mib: u64| StreamWishes { zone: Some(mib * MIB), ..StreamWishes::default() };
        let budget = 600 * MIB;
        assert_eq!(choose(&weights, budget, zone(100)).unwrap().zone, 100 * MIB);
        // Who makes the stream tells that this is too little.
        assert_eq!(choose(&weights, budget, zone(1)).unwrap().zone, MIB);
        for mib in [0, 5, 10, 109, 110, 200, 500, 1309, 1310] {
            let wishes = StreamWishes { resident: Some(mib * MIB), ..StreamWishes::default() };
            let choice = choose(&weights, 1 << 40, wishes).unwrap();
            assert!(choice.resident <= mib.max(10) * MIB, "{mib}: {}", choice.resident / MIB);
            assert!(choice.resident + 20 * MIB > mib * MIB || mib < 110, "{mib}");
            assert_eq!(choice.names.contains(&"head".to_owned()), mib < 110, "{mib}");
        }
    }
}
