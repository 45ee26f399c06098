"""scikit-learn's own checks, in full."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from idensenet.sklearn import FlowClassifier, FlowDensity, FlowOutlierDetector

SHORT = {"max_iter": 10, "blocks": 2, "folds": 1}
LONGER = {**SHORT, "max_iter": 30}  # it is asked to classify


@parametrize_with_checks([FlowDensity(**SHORT), FlowOutlierDetector(**SHORT), FlowClassifier(**LONGER)])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
