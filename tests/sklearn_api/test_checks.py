"""scikit-learn's own checks, in full."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from idensenet.sklearn import FlowClassifier, FlowDensity, FlowOutlierDetector

SHORT = {"max_iter": 30, "blocks": 3, "folds": 1}


@parametrize_with_checks([FlowDensity(**SHORT), FlowOutlierDetector(**SHORT), FlowClassifier(**SHORT)])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
