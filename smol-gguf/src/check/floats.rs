//! Floating-point hyperparameters.

use crate::error::ErrorKind;
use crate::{Array, Value};

use super::model::key_type;
use super::{Model, Report, architecture};

#[derive(Clone, Copy)]
enum Allowed {
    Finite,
    NotNegative,
    Positive,
    ZeroToOne,
}

impl Allowed {
    fn contains(self, v: f32) -> bool {
        match self {
            Self::Finite => v.is_finite(),
            Self::NotNegative => v.is_finite() && v >= 0.0,
            Self::Positive => v.is_finite() && v > 0.0,
            Self::ZeroToOne => (0.0..=1.0).contains(&v),
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Finite => "any finite number",
            Self::NotNegative => "0 or any finite number above it",
            Self::Positive => "any finite number above 0",
            Self::ZeroToOne => "0 to 1",
        }
    }
}

/// Read for every model: another type than `f32` is refused.
const COMMON: &[(&str, Allowed)] = &[
    ("attention.layer_norm_epsilon", Allowed::ZeroToOne),
    ("attention.layer_norm_rms_epsilon", Allowed::ZeroToOne),
    ("rope.freq_base", Allowed::Positive),
    ("rope.scaling.factor", Allowed::NotNegative),
    ("rope.scale_linear", Allowed::NotNegative),
    ("rope.scaling.attn_factor", Allowed::Finite),
];

/// Read for some models.
const SPECIAL: &[(&str, Allowed)] = &[
    ("activation.situ_beta", Allowed::Finite),
    ("activation.situ_linear_beta", Allowed::Finite),
    ("attention.clamp_kqv", Allowed::Finite),
    ("attention.group_norm_epsilon", Allowed::ZeroToOne),
    ("attention.max_alibi_bias", Allowed::NotNegative),
    ("attention.output_scale", Allowed::Finite),
    ("attention.scale", Allowed::Finite),
    ("attention.temperature_scale", Allowed::Finite),
    ("attention.value_scale", Allowed::Finite),
    ("attention.xsa_epsilon", Allowed::ZeroToOne),
    ("attn_logit_softcapping", Allowed::NotNegative),
    ("embedding_scale", Allowed::Finite),
    ("expert_group_scale", Allowed::Finite),
    ("expert_weights_scale", Allowed::Finite),
    ("final_logit_softcapping", Allowed::NotNegative),
    ("hyper_connection.epsilon", Allowed::ZeroToOne),
    ("logit_scale", Allowed::Finite),
    ("post_norm_epsilon", Allowed::ZeroToOne),
    ("residual_scale", Allowed::Finite),
    ("rope.freq_base_swa", Allowed::Positive),
    ("rope.scaling.alpha", Allowed::Finite),
    ("rope.scaling.yarn_attn_factor", Allowed::Finite),
    ("rope.scaling.yarn_beta_fast", Allowed::Finite),
    ("rope.scaling.yarn_beta_slow", Allowed::Finite),
    ("rope.scaling.yarn_ext_factor", Allowed::Finite),
    ("rope.scaling.yarn_log_multiplier", Allowed::Finite),
    ("router_logit_softcapping", Allowed::NotNegative),
];

pub(super) fn check(model: &Model<'_>, report: &mut Report) {
    for &(suffix, allowed) in COMMON {
        if let Some(v) = model.get(suffix)
            && !matches!(v, Value::F32(_))
        {
            report.error(model.first(), key_type(&model.key(suffix), v, "f32"));
        } else {
            known(model, suffix, allowed, report);
        }
    }
    for &(suffix, allowed) in SPECIAL {
        known(model, suffix, allowed, report);
    }
    others(model, report);
}

fn known(model: &Model<'_>, suffix: &str, allowed: Allowed, report: &mut Report) {
    // Where positions aren't rotated, the base is often left at zero.
    let allowed = match allowed {
        Allowed::Positive if !architecture::has_rope(model.arch) => Allowed::Finite,
        other => other,
    };
    if let Some(&Value::F32(v)) = model.get(suffix)
        && !allowed.contains(v)
    {
        model.out_of_range(suffix, v, allowed.describe(), report);
    }
}

/// NaN is wrong in any number of the model's own; infinity has its uses in lists, as a limit that
/// is off.
fn others(model: &Model<'_>, report: &mut Report) {
    let prefix = model.key("");
    let special = |suffix: &str| COMMON.iter().chain(SPECIAL).any(|&(known, _)| known == suffix);
    for (key, value) in model.metadata().iter() {
        let Some(suffix) = key.strip_prefix(&prefix).filter(|s| !special(s)) else { continue };
        let nan = match value {
            Value::F32(v) => v.is_nan(),
            Value::F64(v) => v.is_nan(),
            Value::Array(Array::F32(a)) => a.iter().any(|v| v.is_nan()),
            Value::Array(Array::F64(a)) => a.iter().any(|v| v.is_nan()),
            _ => false,
        };
        if nan {
            model.out_of_range(suffix, "NaN", "any number", report);
        } else if value.as_f64().is_some_and(f64::is_infinite) {
            report.warning(
                model.first(),
                ErrorKind::KeyRange {
                    key: key.to_owned(),
                    found: value.to_string(),
                    allowed: Allowed::Finite.describe().into(),
                },
            );
        }
    }
}
