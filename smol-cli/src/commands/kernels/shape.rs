//! Sizes of matrices on the command line.

use smolmaxxing::kernels::MatrixShape;

/// Parses `ROWSxCOLUMNS` or `EXPERTSxROWSxCOLUMNS`.
pub fn parse(text: &str) -> Result<MatrixShape, String> {
    let sizes: Result<Vec<usize>, _> = text.split(['x', 'X', '*']).map(str::parse).collect();
    let shape = match sizes.as_deref() {
        Ok([rows, columns]) => MatrixShape::new(*rows, *columns),
        Ok([experts, rows, columns]) => MatrixShape::experts(*experts, *rows, *columns),
        _ => return Err("write ROWSxCOLUMNS or EXPERTSxROWSxCOLUMNS".to_owned()),
    };
    match shape.weights() {
        Some(0) => Err("no size can be 0".to_owned()),
        Some(weights) if weights <= MOST_WEIGHTS => Ok(shape),
        _ => Err(format!("more than {MOST_WEIGHTS} weights")),
    }
}

/// More than any matrix of a model that a single machine runs.
const MOST_WEIGHTS: usize = 1 << 34;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_rows_and_columns() {
        assert_eq!(parse("2048x1024"), Ok(MatrixShape::new(2048, 1024)));
        assert_eq!(parse("32x512x1536"), Ok(MatrixShape::experts(32, 512, 1536)));
        for wrong in ["", "3", "3x", "x3", "0x256", "1x2x3x4", "-1x2", "99999999x99999999", "a x b"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
