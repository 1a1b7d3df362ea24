//! Which experts to read before the first token.

/// One expert to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarmExpert {
    /// Index of the layer among those with experts.
    pub layer: usize,
    /// The expert.
    pub expert: u32,
}

/// Returns the experts worth reading at the start, the most used first.
///
/// `uses[layer][expert]` is how often a router chose it, for instance in a trace. At most
/// `most_of_layer` experts of a layer are listed, which is what its slots hold if each layer has
/// its own; experts that were never chosen are not. Those used equally often come layer after
/// layer, as a token needs them.
///
/// ```
/// use smol_engine::expert::prefetch::{WarmExpert, warm_list};
///
/// let uses = [vec![5, 0, 9, 7], vec![1, 8, 0, 0]];
/// let list: Vec<_> = warm_list(&uses, 2).iter().map(|e| (e.layer, e.expert)).collect();
/// assert_eq!(list, [(0, 2), (1, 1), (0, 3), (1, 0)]);
/// ```
pub fn warm_list(uses: &[Vec<u64>], most_of_layer: usize) -> Vec<WarmExpert> {
    let mut list = Vec::new();
    for (layer, uses) in uses.iter().enumerate() {
        let mut experts: Vec<(u64, WarmExpert)> = uses
            .iter()
            .zip(0u32..)
            .filter(|(uses, _)| **uses > 0)
            .map(|(uses, expert)| (*uses, WarmExpert { layer, expert }))
            .collect();
        experts.sort_by_key(|(uses, _)| std::cmp::Reverse(*uses));
        experts.truncate(most_of_layer);
        list.append(&mut experts);
    }
    list.sort_by_key(|(uses, _)| std::cmp::Reverse(*uses));
    list.into_iter().map(|(_, expert)| expert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_the_most_used_of_each_layer_in_order(
            uses in prop::collection::vec(prop::collection::vec(0u64..6, 0..20), 0..8),
            most in 0usize..12,
        ) {
            let list = warm_list(&uses, most);
            let used = |e: &WarmExpert| uses[e.layer][e.expert as usize];
            prop_assert!(list.iter().all(|e| used(e) > 0));
            let in_order = list.windows(2).all(|pair| {
                let (a, b) = (&pair[0], &pair[1]);
                used(a) > used(b)
                    || used(a) == used(b) && (a.layer, a.expert) < (b.layer, b.expert)
            });
            prop_assert!(in_order);
            for (layer, uses) in uses.iter().enumerate() {
                let listed: Vec<usize> =
                    list.iter().filter(|e| e.layer == layer).map(|e| e.expert as usize).collect();
                let worth = uses.iter().filter(|n| **n > 0).count();
                prop_assert_eq!(listed.len(), worth.min(most));
                let least = listed.iter().map(|e| uses[*e]).min().unwrap_or(u64::MAX);
                let better_unlisted = (0..uses.len())
                    .any(|e| !listed.contains(&e) && !listed.is_empty() && uses[e] > least);
                prop_assert!(!better_unlisted);
            }
        }
    }
}
