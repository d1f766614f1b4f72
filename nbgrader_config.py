"""So that plain `nbgrader ...` works at the root of the course; everything longer lives in autograder/."""

import os
import sys
import warnings

from autograder.feedback import sanitize
from autograder.submissions import lateness

c = get_config()  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

# nbgrader looks for alembic on the PATH, also when it was itself started by its full path
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

# nbgrader's own, about objects that it adds to its session later; nothing that a user can act on
warnings.filterwarnings("ignore", message="Object of type <Submitted")

c.CourseDirectory.course_id = "worldsize"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
# what lies beside a solution and must reach neither students nor their submissions; a project's programs travel
# through the exchange all the same, by the classes of autograder.submissions.exchange
c.CourseDirectory.ignore = ["*.py", "*.pyc", "*.toml", "key.json", "wrong", "right", "feedback", "__pycache__", ".*"]

c.ClearSolutions.code_stub = {
    "python": 'raise NotImplementedError("Replace this line with your own code, then run the cell again.")'
}
c.ClearSolutions.text_stub = "*Replace this line with your answer.*"

# the gradebook names no kernel, in which nbgrader could run a submission if the lines below were not read
c.GenerateAssignment.preprocessors = [
    "nbgrader.preprocessors.IncludeHeaderFooter",
    "nbgrader.preprocessors.InstantiateTests",
    "nbgrader.preprocessors.LockCells",
    "nbgrader.preprocessors.ClearSolutions",
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.CheckCellMetadata",
    "nbgrader.preprocessors.ComputeChecksums",
    "autograder.grading.no_kernel.SaveCells",
    "autograder.authoring.programs.ReleasePrograms",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.ClearMarkScheme",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# grading: the judge decides, in place of a kernel that ran student code
c.Autograde.pre_convert_hook = "autograder.grading.preprocessor.prepare"
c.Autograde.exporter_class = "autograder.grading.preprocessor.SubmissionExporter"
c.Autograde.autograde_preprocessors = [
    "autograder.grading.preprocessor.Grade",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.OverwriteCells.add_missing_cells = True
# a project is trained many times over: as often as its hidden checks ask, and by torchrun, which takes seconds to start
c.Grade.call_s_of, c.Grade.total_s_of = {"project1": 90}, {"project1": 900}

# the exchange: with a project's programs, and no student's file stops the others'
c.ExchangeFactory.release_assignment = "autograder.submissions.exchange.Release"
c.ExchangeFactory.fetch_assignment = "autograder.submissions.exchange.Fetch"
c.ExchangeFactory.submit = "autograder.submissions.exchange.Submit"
c.ExchangeFactory.release_feedback = "autograder.submissions.exchange.ReleaseFeedback"
c.ZipCollectApp.extractor_plugin = "autograder.submissions.archives.Extractor"

# lateness: by the collectors' record, and not by a timestamp.txt among the student's files
lateness.install()
c.ExchangeFactory.collect = "autograder.submissions.lateness.Collect"
c.ZipCollectApp.collector_plugin = "autograder.submissions.lateness.FileNames"
c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".py"]  # of programs only those that a project asks for
c.AssignLatePenalties.plugin_class = "autograder.submissions.lateness.Policy"
# for instance 30 minutes free, then 10% for every day begun, but never more than 50%; by default nothing
# c.Policy.grace_minutes, c.Policy.percent_per_day, c.Policy.cap_percent = 30, 10, 50

# `nbgrader export`: no number where there is no grade
c.ExportApp.plugin_class = "autograder.grading.exports.Grades"

# a student's cells, in feedback and in the formgrader, with nothing in them that can run or take hours to render
sanitize.install()
c.HTMLExporter.filters = {
    "markdown2html": "autograder.feedback.sanitize.markdown_to_html",
    "clean_html": "autograder.feedback.sanitize.clean",
    "highlight_code": "autograder.feedback.sanitize.highlight_code",
}

# feedback: a page of our own, which a student can read without a network
c.GenerateFeedback.exporter_class = "autograder.feedback.page.FeedbackExporter"
c.GenerateFeedback.preprocessors = ["autograder.feedback.page.Grades", "autograder.feedback.mathml.FormulasToMathML"]
