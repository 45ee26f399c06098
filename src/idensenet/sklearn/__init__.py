"""scikit-learn estimators: a density, an outlier detector and a classifier, all certified invertible flows on tables."""

from idensenet.extras import needs

with needs("idensenet.sklearn"):
    from idensenet.sklearn.classifier import FlowClassifier
    from idensenet.sklearn.density import FlowDensity
    from idensenet.sklearn.outliers import FlowOutlierDetector

__all__ = ["FlowClassifier", "FlowDensity", "FlowOutlierDetector"]
