//! Log-probabilities under the model's own distribution, before any sampling setting.

use crate::error::{Error, ErrorKind, Result};
use crate::sampler::bitset::BitSet;
use crate::sampler::select::Selection;
use crate::token::Token;

/// Returns the natural logarithm of a token's probability under the softmax of `logits`.
///
/// # Errors
/// `InvalidArgument` if the token has no logit; `NonFinite` if the logits hold NaN or +inf, or are all -inf.
///
/// # Examples
/// ```
/// use llama_rs::Token;
/// let p = llama_rs::sampler::log_softmax(&[0.0, 0.0], Token(1))?.exp();
/// assert!((p - 0.5).abs() < 1e-9);
/// # Ok::<(), llama_rs::Error>(())
/// ```
pub fn log_softmax(logits: &[f32], token: Token) -> Result<f64> {
    let logit = token.index().and_then(|id| logits.get(id)).copied().ok_or_else(|| {
        Error::invalid(format!("token {token} has no logit, there are {}", logits.len()))
    })?;
    let norm = log_normaliser(logits)?;
    Ok(f64::from(logit - norm.max) - norm.log_sum)
}

/// Returns the `k` most probable tokens with the natural logarithms of their probabilities, best first.
///
/// # Errors
/// `NonFinite` if the logits hold NaN or +inf, or are all -inf.
pub fn top_log_probs(logits: &[f32], k: usize) -> Result<Vec<(Token, f32)>> {
    if k == 0 {
        return Ok(Vec::new());
    }
    let norm = log_normaliser(logits)?;
    let mut keys = Vec::new();
    let none = BitSet::default();
    Selection { logits, changed: &[], changed_ids: &none, allowed: None }.select(k, &mut keys)?;
    Ok(keys
        .into_iter()
        .map(|key| {
            let log_prob = f64::from(key.logit() - norm.max) - norm.log_sum;
            (Token(key.id() as i32), log_prob as f32)
        })
        .collect())
}

struct Normaliser {
    max: f32,
    log_sum: f64,
}

fn log_normaliser(logits: &[f32]) -> Result<Normaliser> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max });
    // The same arithmetic as llama-perplexity, so that figures compare: single exponentials, double sum.
    let sum: f64 = logits.iter().map(|&l| f64::from((l - max).exp())).sum();
    if !max.is_finite() || !sum.is_finite() {
        return Err(Error::new(
            ErrorKind::NonFinite,
            "the model's logits hold NaN or infinity; its weights are broken",
        ));
    }
    Ok(Normaliser { max, log_sum: sum.ln() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let logits: Vec<f32> = (0..500).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let sum: f64 = (0..500).map(|i| log_softmax(&logits, Token(i)).unwrap().exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        let top = top_log_probs(&logits, 5).unwrap();
        assert_eq!(top.len(), 5);
        assert!(top.windows(2).all(|w| w[0].1 >= w[1].1));
        let exact = log_softmax(&logits, top[0].0).unwrap();
        assert!((exact - f64::from(top[0].1)).abs() < 1e-6);
    }

    #[test]
    fn broken_logits_are_errors() {
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert_eq!(log_softmax(&logits, Token(0)).unwrap_err().kind(), &ErrorKind::NonFinite);
        }
        assert_eq!(log_softmax(&[f32::NEG_INFINITY, 0.0], Token(0)).unwrap(), f64::NEG_INFINITY);
        assert!(log_softmax(&[0.0], Token(1)).is_err());
        assert!(log_softmax(&[0.0], Token(-1)).is_err());
        assert!(top_log_probs(&[0.0], 0).unwrap().is_empty());
    }
}
