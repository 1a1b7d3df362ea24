//! Which weights are streamed when nobody has said how much memory there is.

use smol_gguf::Shards;

use super::{HEAD, TABLE};

/// Matrices of a layer that are used once in a graph, as the left side of a product.
const MATRICES: [&str; 17] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_q_a",
    "attn_q_b",
    "ssm_in",
    "ssm_out",
    "shortconv.in_proj",
    "shortconv.out_proj",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_shexp",
    "ffn_up_shexp",
];

/// Returns the names of the tensors to stream: the table of embeddings and all matrices of layers, but for as many of these
/// as fit into `resident` bytes beside all that cannot be streamed; then those of the head, if it has to be, too.
pub(crate) fn choose(shards: &Shards, resident: u64) -> Vec<String> {
    let untied = shards.tensor(HEAD).is_some();
    let (mut streamed, mut head, mut stays) = (Vec::new(), None, 0_u64);
    for (_, info) in shards.tensors() {
        let [_, rows, matrices, rest] = info.dims();
        let one = matrices * rest == 1 && rows > 1;
        let is_head = info.name() == if untied { HEAD } else { TABLE };
        match info.name() {
            name if one && is_head => head = Some((name.to_owned(), info.n_bytes())),
            name if one && (name == TABLE || is_matrix(name)) => {
                streamed.push((name.to_owned(), info.n_bytes()));
            }
            _ => stays = stays.saturating_add(info.n_bytes()),
        }
    }
    let mut left = resident.saturating_sub(stays);
    // The largest matrix, used for each token: first of all it stays.
    let mut names: Vec<_> = head.into_iter().chain(streamed).collect();
    names.retain(|(name, bytes)| {
        let rows_only = untied && name == TABLE;
        let stays = !rows_only && *bytes <= left;
        left -= if stays { *bytes } else { 0 };
        !stays
    });
    names.into_iter().map(|(name, _)| name).collect()
}

fn is_matrix(name: &str) -> bool {
    let part = || name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.');
    part().is_some_and(|(_, part)| MATRICES.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::tiny::{self, Arch, TinyOptions};

    #[test]
    fn what_fits_stays_and_the_head_first() {
        let folder = tempfile::tempdir().unwrap();
        for tied in [true, false] {
            let path = folder.path().join("model.gguf");
            let options = TinyOptions { tied: Some(tied), ..TinyOptions::default() };
            tiny::write(&path, Arch::Llama, &options).unwrap();
            let shards = Shards::open(&path).unwrap();
            let size = |name: &String| shards.tensor(name).unwrap().1.n_bytes();
            let all: u64 = shards.tensors().map(|(_, info)| info.n_bytes()).sum();
            let every = choose(&shards, 0);
            let fixed = all - every.iter().map(size).sum::<u64>();
            let head = if tied { TABLE } else { HEAD };
            let is = |name: &str| move |other: &String| other == name;
            assert!(every.iter().any(is(head)) && every.iter().any(is(TABLE)));
            assert!(fixed < all / 20, "{fixed} of {all}");
            let mut before = every.len();
            for resident in (fixed..all).step_by(50_000) {
                let names = choose(&shards, resident);
                assert!(names.len() <= before);
                before = names.len();
                let kept = all - names.iter().map(size).sum::<u64>();
                assert!(kept <= resident, "{kept} {resident}");
                assert_eq!(names.iter().any(is(head)), resident < fixed + size(&head.to_owned()));
                // The rows of what is only a table need no memory.
                assert!(tied || names.iter().any(is(TABLE)));
            }
        }
    }
}
