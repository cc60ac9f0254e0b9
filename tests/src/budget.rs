//! What the agent may cost: `agent/docs/budgets.json`, beside the page with the figures.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The file.
const BUDGETS: &str = include_str!("../../agent/docs/budgets.json");

/// Figures by name.
pub type Figures = BTreeMap<&'static str, f64>;

/// The figures that are above their budget in a part of the file, or missing, each with its budget.
pub fn broken(part: &str, figures: &Figures) -> Vec<String> {
    let budgets: Value = serde_json::from_str(BUDGETS).unwrap_or_default();
    match budgets[part].as_object() {
        Some(budgets) => above(budgets, figures),
        None => vec![format!("budgets.json has no part {part}")],
    }
}

fn above(budgets: &Map<String, Value>, figures: &Figures) -> Vec<String> {
    let verdict = |(name, budget): (&String, &Value)| {
        let budget = budget.as_f64()?;
        match figures.get(name.as_str()) {
            Some(figure) if *figure <= budget => None,
            Some(figure) => Some(format!("{name} is {figure:.3}, its budget {budget}")),
            None => Some(format!("{name} was not measured, its budget is {budget}")),
        }
    };
    budgets.iter().filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_figure_above_its_budget_or_missing_is_told_with_both() {
        let budgets = json!({"threads": 10, "wakes": 3.0, "maps": 4.5});
        let figures = Figures::from([("threads", 10.0), ("wakes", 3.25), ("other", 99.0)]);
        let expected =
            ["maps was not measured, its budget is 4.5", "wakes is 3.250, its budget 3.0"];
        let mut found = above(budgets.as_object().unwrap(), &figures);
        found.sort();
        assert_eq!(found, expected.map(|text| text.replace("3.0", "3")));
    }

    #[test]
    fn the_committed_budgets_can_be_read() {
        for part in ["bench", "guard"] {
            let found = broken(part, &Figures::new());
            assert!(!found.is_empty() && found.iter().all(|one| one.contains("not measured")));
        }
    }
}
