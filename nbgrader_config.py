"""So that plain `nbgrader ...` works at the root of the course; everything longer lives in autograder/."""

import os
import sys
import warnings

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

# nbgrader looks for alembic on the PATH, also when it was itself started by its full path
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

# nbgrader's own, about objects that it adds to its session later; nothing that a user can act on
warnings.filterwarnings("ignore", message="Object of type <Submitted")

c.CourseDirectory.course_id = "worldsize"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
# what lies beside a solution and must reach neither students nor their submissions
c.CourseDirectory.ignore = ["*.py", "*.pyc", "*.toml", "wrong", "right", "feedback", "__pycache__", ".*"]

c.ClearSolutions.code_stub = {
    "python": 'raise NotImplementedError("Replace this line with your own code, then run the cell again.")'
}
c.ClearSolutions.text_stub = "*Replace this line with your answer.*"

# grading: the judge decides, in place of a kernel that ran student code
c.Autograde.pre_convert_hook = "autograder.grade.prepare"
c.Autograde.exporter_class = "autograder.grade.SubmissionExporter"
c.Autograde.autograde_preprocessors = [
    "autograder.grade.Grade",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.OverwriteCells.add_missing_cells = True

# feedback that a student can read without a network
c.GenerateFeedback.exporter_class = "autograder.offline.OfflineHTMLExporter"
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.GetGrades",
    "autograder.offline.FormulasToMathML",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
