use super::*;
use proptest::prelude::*;

fn part(weight: u128) -> Part {
    Part { weight, ..Part::idle(0_u8) }
}

proptest! {
    #[test]
    fn amounts_add_up_to_the_total_and_each_is_its_weight_within_one(
        total in 0_u128..1 << 60,
        weights in prop::collection::vec(0_u128..1 << 40, 0..50),
    ) {
        let parts: Vec<_> = weights.iter().copied().map(part).collect();
        let whole: u128 = weights.iter().sum();
        let mut given = Vec::new();
        split(total, &parts, |_, amount| given.push(amount));
        prop_assert_eq!(given.iter().sum::<u128>(), total);
        for (amount, weight) in given.iter().zip(&weights) {
            let exact = (total * weight).checked_div(whole).unwrap_or(0);
            prop_assert!(amount.abs_diff(exact) <= 1, "{} is not {}", amount, exact);
        }
    }

    #[test]
    fn scaled_weights_add_up_to_the_total(
        total in 0_u128..1 << 50,
        weights in prop::collection::vec(0_u128..1 << 50, 1..50),
    ) {
        prop_assume!(weights.iter().sum::<u128>() > total);
        let mut parts: Vec<_> = weights.iter().copied().map(part).collect();
        scale(total, &mut parts);
        prop_assert_eq!(parts.iter().map(|part| part.weight).sum::<u128>(), total);
    }
}
